"""Tests of the add-on mixtures."""
