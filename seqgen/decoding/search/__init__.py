"""Search strategies: which candidates continue which beams."""
