"""Search for the best values of decoding keys: the settings, their decodes, and their scores."""
