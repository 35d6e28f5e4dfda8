"""Key/value caches of attention: one protocol, one class per memory layout."""
