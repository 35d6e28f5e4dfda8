"""Tests of models/huggingface."""
