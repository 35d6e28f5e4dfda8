"""Compares the outputs of several systems: intervals, paired tests, breakdowns; decoding does not import it."""
