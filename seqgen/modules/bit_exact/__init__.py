"""Bit-exact decoding: the numbers of a sentence do not depend on the other sentences of its batch."""
