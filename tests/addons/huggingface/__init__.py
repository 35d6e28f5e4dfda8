"""Tests of the add-on huggingface."""
