"""Compares systems and runs: intervals, paired tests, breakdowns, tables and pages."""
