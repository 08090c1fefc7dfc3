"""Operators: one folder each. `declare` needs neither Spark nor Arrow, `execute` no Spark."""
