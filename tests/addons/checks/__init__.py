"""Tests of the add-on checks."""
