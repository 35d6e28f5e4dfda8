"""Traces of decodes: every step of the search, in files and on a page."""
