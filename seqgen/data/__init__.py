"""From text files to batches: vocabularies, tokenizers, encoded data sets on disk, batching and collation."""
