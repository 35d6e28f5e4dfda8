"""Tests of the add-on marian."""
