"""Key/value caches of attention: one protocol, one class for each implementation, and the choice among them."""
