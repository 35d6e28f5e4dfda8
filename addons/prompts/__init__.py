"""Prompts: templates of the text that a language model continues (``generation.prompt``); docs/models.md."""
