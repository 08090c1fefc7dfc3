"""From evidence to a plan, from a plan to an open store, and rebuilding a lost catalog."""
