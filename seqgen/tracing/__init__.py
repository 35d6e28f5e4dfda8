"""Traces in files: every step of the search of each sentence, written while decoding, read and replayed later."""
