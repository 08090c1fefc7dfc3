"""Parquet files that hold the rows as they are now, as a sink."""
