"""What goes through `cluster_pipeline.py`, said again without Spark and without Holdfast."""

from __future__ import annotations

PEOPLE = 50


def rows(count: int) -> list[tuple[int, int, int]]:
    """What the generator gives: id, k, x."""
    return [(i, i * 7919 % PEOPLE, i % 7) for i in range(count)]


def totals(of: list[tuple[int, int, int]]) -> list[tuple[str, int, int, int]]:
    """By name: count, sum, and how many are distinct."""
    by_name: dict[str, list[int]] = {}
    for _, k, x in of:
        by_name.setdefault(f"p{k}", []).append(x)
    return sorted((name, len(xs), sum(xs), len(set(xs))) for name, xs in by_name.items())
