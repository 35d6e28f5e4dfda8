"""The invariants of models and of decoding, which hold for every model; decoding does not import this package."""
