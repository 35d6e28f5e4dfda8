"""Data, from text files to batches: vocabularies, tokenizers, encoded datasets on disk, batching and collation."""
