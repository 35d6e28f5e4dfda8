"""Decoding above the core: strategies, processors, combinations and rules by name, and their keys.

``options`` makes a ``DecodingSetup`` from a configuration. ``rules`` has every difference between fairseq's and Hugging
Face's decoding. ``seqgen.core`` has the loop that they all run in.
"""
