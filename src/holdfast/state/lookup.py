"""Lookup: all keys of an epoch at once, over the runs of a trace.

Invariants:
- Probes are sorted by hash once; each run is then passed front to back.
- A row is a hit only when its key columns equal the probe's: an equal hash is not enough.
- The newest run that knows a key decides, tombstones included; older runs are not asked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from holdfast.state.arrow.batches import ascends, empty_batch, hash_order, join_batches
from holdfast.state.arrow.row_equality import rows_equal
from holdfast.state.run_view import PAIRS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.state.run_view import RunView
    from holdfast.state.schema import TraceSchema


class Probe:
    """Keys to look up, in hash order; `order` leads back to the caller's rows."""

    def __init__(self, hashes: np.ndarray, columns: Sequence[Any]) -> None:
        """Sort once; operators give keys in the order of their groups, which is that of hashes."""
        if ascends(hashes):
            self.order, self.hashes = np.arange(len(hashes)), hashes
            self.columns = list(columns)
            return
        self.order = hash_order(hashes)
        self.hashes = hashes[self.order]
        index = pa.array(self.order)
        self.columns = [column.take(index) for column in columns]

    def __len__(self) -> int:
        """How many keys."""
        return len(self.order)


@dataclass(frozen=True, slots=True)
class Hits:
    """Stored rows that belong to probes: `rows` row i answers probe position `positions[i]`."""

    positions: np.ndarray
    rows: pa.RecordBatch


def find_rows(
    view: RunView, probe: Probe, open_probes: np.ndarray | None, columns: Sequence[int]
) -> list[Hits]:
    """All rows of one view whose keys are among the probes; `open_probes` restricts the probes.

    Record batches are only gathered from one by one; keys are compared for many of them at once.
    """
    keys = view.run.schema.key_indices
    hashes = probe.hashes if open_probes is None else probe.hashes[open_probes]
    hits: list[Hits] = []
    positions: list[np.ndarray] = []
    gathered: list[list[Any]] = []
    pairs = 0
    for number, places, rows in view.find(hashes):
        batch = view.run.batch(number)
        index = pa.array(rows)
        positions.append(places if open_probes is None else open_probes[places])
        gathered.append([batch.column(i).take(index) for i in (*keys, *columns)])
        pairs += len(rows)
        if pairs >= PAIRS_MAX:
            hits += _equal_only(view, probe, positions, gathered, columns)
            positions, gathered, pairs = [], [], 0
    return hits + _equal_only(view, probe, positions, gathered, columns)


def _equal_only(
    view: RunView,
    probe: Probe,
    positions: list[np.ndarray],
    gathered: list[list[Any]],
    columns: Sequence[int],
) -> list[Hits]:
    """Of rows with the hash of a probe, those that have its key."""
    if not positions:
        return []
    places = np.concatenate(positions)
    joined = [_join_arrays(pieces) for pieces in zip(*gathered, strict=True)]
    width = len(view.run.schema.keys)
    probe_index = pa.array(places)
    same = rows_equal(joined[:width], [column.take(probe_index) for column in probe.columns])
    answers = joined[width:]
    if not same.all():
        mask = pa.array(same)
        places, answers = places[same], [column.filter(mask) for column in answers]
    if not len(places):
        return []
    schema = pa.schema([view.run.schema.stored.field(i) for i in columns])
    return [Hits(places, pa.RecordBatch.from_arrays(answers, schema=schema))]


def _join_arrays(pieces: Sequence[Any]) -> Any:
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def newest_rows(views: Sequence[RunView], probe: Probe, columns: Sequence[int]) -> Hits:
    """For each probe its row in the newest view that has one; views are given oldest first."""
    open_probes: np.ndarray | None = None
    hits: list[Hits] = []
    for view in reversed(views):
        view_hits = find_rows(view, probe, open_probes, columns)
        hits += view_hits
        if view_hits:
            answered = np.zeros(len(probe), np.bool_)
            if open_probes is not None:
                answered[:] = True
                answered[open_probes] = False
            for hit in view_hits:
                answered[hit.positions] = True
            open_probes = np.flatnonzero(~answered)
            if not len(open_probes):
                break
    return _join(hits, views, columns)


def all_rows(views: Sequence[RunView], probe: Probe, columns: Sequence[int]) -> Hits:
    """For each probe its rows in all views."""
    hits = [hit for view in views for hit in find_rows(view, probe, None, columns)]
    return _join(hits, views, columns)


def _join(hits: list[Hits], views: Sequence[RunView], columns: Sequence[int]) -> Hits:
    if not hits:
        schema: TraceSchema | None = views[0].run.schema if views else None
        fields = [schema.stored.field(i) for i in columns] if schema else []
        return Hits(np.zeros(0, np.int64), empty_batch(pa.schema(fields)))
    schema_of = hits[0].rows.schema
    rows = join_batches([hit.rows for hit in hits], schema_of)
    return Hits(np.concatenate([hit.positions for hit in hits]), rows)
