"""Compare: intervals and paired tests of systems, and runs as tables and pages; docs/comparing.md."""
