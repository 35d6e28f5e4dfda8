"""Compares systems and runs: intervals, paired tests, breakdowns, tables, curves and pages."""
