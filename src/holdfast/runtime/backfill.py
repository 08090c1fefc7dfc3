"""Backfill: the epochs that give new operators and sinks the rows of the past.

Invariants:
- Planning runs nothing. Sources say their history in splits; one epoch reads one split of each.
- Rows of kept operators go into the first epoch only, and positions stay where they are.
- What the past has closed is closed by a last epoch, at the watermark of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.base import SourceReader, Split
from holdfast.operators.base import Analyzed
from holdfast.runtime.evolution import ChangePlan
from holdfast.runtime.graph import Graph


@dataclass(frozen=True)
class BackfillEpoch:
    """What one epoch of a backfill reads. given: frames of kept operators, by identity of node."""

    splits: Mapping[str, Split]
    given: Mapping[int, Any]
    watermark_us: int | None = None


def plan_backfill(
    changes: ChangePlan,
    views: Mapping[str, Any],
    *,
    graph: Graph,
    resolved: Mapping[str, Analyzed],
    readers: Mapping[str, SourceReader],
    watermark_us: int | None,
) -> list[BackfillEpoch]:
    """The epochs of a backfill, at least one.

    Args:
        changes: what is new, and what is replayed.
        views: rows of kept operators as DataFrames, by the operator's name.
        graph: the pipeline's nodes.
        resolved: its operators, with types.
        readers: its sources.
        watermark_us: the watermark of the checkpoint that the backfill builds on.

    Returns:
        What each epoch reads, in order.
    """
    given = {id(node): views[node.name] for node in graph.operators if node.name in views}
    empty = {node: frame.where("false") for node, frame in given.items()}
    history = {name: readers[name].history() for name in changes.from_sources}
    count = max((len(splits) for splits in history.values()), default=0)
    epochs = []
    for number in range(max(1, count)):
        splits = {name: past[number] for name, past in history.items() if number < len(past)}
        epochs.append(BackfillEpoch(splits, empty if number else given))
    timed = any(one.task.timed for name, one in resolved.items() if name in changes.new)
    if timed and watermark_us is not None:
        epochs.append(BackfillEpoch({}, empty, watermark_us))
    return epochs
