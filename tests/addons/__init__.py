"""Tests of the add-ons, a folder each; without its add-on, a folder is not collected."""
