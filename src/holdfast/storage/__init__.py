"""Storage: the only I/O."""
