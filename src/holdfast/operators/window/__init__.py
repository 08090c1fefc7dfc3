"""Aggregates by windows of event time."""
