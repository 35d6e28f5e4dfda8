"""Paragraphs: lines are split into sentences, which are decoded like separate lines; docs/paragraphs.md."""
