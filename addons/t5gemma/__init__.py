"""T5Gemma and T5Gemma 2: the models and their layout of Hugging Face; docs/models.md."""
