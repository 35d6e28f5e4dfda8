"""Key/value caches of attention: one protocol, and one class for each implementation."""
