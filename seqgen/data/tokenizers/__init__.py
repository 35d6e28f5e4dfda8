"""Tokenizers, which turn text into ids and ids into text: their classes, files and training."""
