"""Tokenizers: text to ids and back, with the vocabulary that they write."""
