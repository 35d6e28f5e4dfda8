"""Compares systems and runs: intervals, paired tests, tables."""
