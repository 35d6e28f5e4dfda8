"""Tests of the add-on compare."""
