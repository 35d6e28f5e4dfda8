"""Confidence: features of translations, and a map from them to the probability that an output is good enough."""
