"""Modules of ``benchmarks.decode``. Workers of other toolkits import no seqgen: their environments do not have it."""
