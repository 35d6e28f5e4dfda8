"""Training runs: where their values come from, their logs, tables and curves; decoding does not import it."""
