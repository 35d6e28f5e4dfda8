"""Tests of the add-on paragraphs."""
