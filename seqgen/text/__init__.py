"""From lines of text to lines of text: decoding, streaming, unknown words, metrics, minimum Bayes risk."""
