"""T5Gemma."""
