"""Allowed outputs, shortlists of tokens, and certificates of exact search; docs/retrieval.md."""
