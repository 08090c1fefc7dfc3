"""What a user writes: pipelines, streams, functions, windows, views."""
