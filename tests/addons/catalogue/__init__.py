"""Tests of the add-on catalogue."""
