"""Tests of the add-on protect."""
