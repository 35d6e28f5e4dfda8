"""Tests of models/fairseq."""
