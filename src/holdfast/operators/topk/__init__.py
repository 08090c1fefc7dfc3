"""`top_k` and `latest`."""
