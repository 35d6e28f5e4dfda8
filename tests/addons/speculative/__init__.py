"""Tests of the add-on speculative."""
