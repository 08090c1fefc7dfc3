"""Aggregate functions as folds over whole batches."""
