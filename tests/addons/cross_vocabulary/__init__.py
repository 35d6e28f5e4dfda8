"""Tests of the add-on cross_vocabulary."""
