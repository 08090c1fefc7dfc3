"""`top_k` and `latest`: declared in `declare`, given types in `analyze`, run by `execute`."""
