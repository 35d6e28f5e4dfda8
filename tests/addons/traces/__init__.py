"""Tests of the add-on traces."""
