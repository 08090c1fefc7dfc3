"""A journal as a source and as a sink."""
