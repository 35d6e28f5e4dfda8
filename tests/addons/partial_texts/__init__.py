"""Tests of the add-on partial_texts."""
