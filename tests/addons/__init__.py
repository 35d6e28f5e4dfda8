"""Tests of add-ons, in a folder each."""
