"""Tests of the add-on confidence."""
