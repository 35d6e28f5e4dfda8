"""Traces of decodes: every step of the search, in files and on a page; where two decodes differ first, and why."""
