"""Tests of the add-on rewriting."""
