"""What ``benchmarks.decode`` is made of. Workers of peers run in environments without seqgen, and import none of it."""
