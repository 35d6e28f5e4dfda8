"""Tests of the add-on inspection."""
