"""``make soak``: jobs whose processes are killed again and again."""
