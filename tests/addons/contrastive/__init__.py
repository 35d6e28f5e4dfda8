"""Tests of the add-on contrastive."""
