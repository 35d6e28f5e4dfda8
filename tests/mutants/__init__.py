"""Mutation testing: small faults are planted in copies of the code, and the fast tests must find them."""
