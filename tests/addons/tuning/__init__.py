"""Tests of the add-on tuning."""
