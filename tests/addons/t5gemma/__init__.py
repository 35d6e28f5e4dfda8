"""Tests of the add-on t5gemma."""
