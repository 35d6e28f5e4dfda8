"""Folders of Hugging Face: architectures, weights and generation settings, read and written."""
