"""What decoding is: models, the search, and the loop that drives both."""
