"""Tests of the add-on fairseq."""
