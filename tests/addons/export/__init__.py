"""Tests of the add-on export."""
