"""Stateful operators: what they keep, and how whole batches are folded in. No Spark import."""
