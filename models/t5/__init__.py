"""T5 and its descendants."""
