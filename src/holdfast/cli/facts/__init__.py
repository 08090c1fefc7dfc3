"""Facts: what a verb has to say, as values. Nothing here prints, and only `keeping` writes."""
