"""A changelog in Parquet files as a sink."""
