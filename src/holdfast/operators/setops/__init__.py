"""`union`, `except` and `intersect`."""
