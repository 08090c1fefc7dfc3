"""`upsert`: declared in `declare`, given types in `analyze`, run by `execute`."""
