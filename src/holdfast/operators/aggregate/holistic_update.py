"""Runs the folds that must see the values of a group: one look-up for each bag of values.

Invariants:
- A bag is read for the groups that one of its folds needs, once, and written once an epoch.
- Keys of a bag are the keys of the operator, whatever they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.operators.aggregate.functions.base import Batch
from holdfast.operators.aggregate.functions.holistic import GatherFold
from holdfast.operators.base import WEIGHT
from holdfast.operators.zset import Rows


def gather(
    folds: Sequence[GatherFold], batch: Batch, old: dict[str, Any], found: np.ndarray,
    traces: Mapping[str, Any], probe: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:  # fmt: skip
    """Results of these folds, and the updates of their bags."""
    new: dict[str, Any] = {}
    updates: dict[str, Any] = {}
    wholes: dict[str, tuple[Rows, np.ndarray, Rows]] = {}
    for fold in folds:
        if fold.bag is None or fold.bag not in wholes:
            came = fold.came(batch)
            needed = np.zeros(batch.count, np.bool_)
            for other in folds:
                if other is fold or (fold.bag is not None and other.bag == fold.bag):
                    needed |= other.needs(batch, came)
            whole = _whole(fold, came, needed, traces, probe)
            if fold.bag is not None:
                wholes[fold.bag] = came, needed, whole
                updates[fold.bag] = _update(fold, came, probe)
        else:
            came, needed, whole = wholes[fold.bag]
        kept = fold.kept(old, found)
        if kept is not None and not needed.all():
            whole = whole.plus(kept.plus(came).of(~needed))
        new.update(fold.compute(whole, probe))
    return new, updates


def _whole(
    fold: GatherFold, came: Rows, needed: np.ndarray, traces: Mapping[str, Any], probe: Any
) -> Rows:
    """All values of the groups that need them, old and new."""
    fresh = came.of(needed)
    if fold.bag is None or not needed.any():
        return fresh
    groups = np.flatnonzero(needed)
    answer = traces[fold.bag].lookup(probe.take(pa.array(groups)))
    columns = [answer.rows.column(name) for name in fold.fields.names]
    stored = Rows(groups[answer.probes], columns, answer.weights)
    return stored.plus(fresh).summed().present()


def _update(fold: GatherFold, came: Rows, probe: Any) -> Any:
    keys = probe.take(pa.array(came.numbers))
    return pa.RecordBatch.from_arrays(
        [*keys.columns, *came.columns, pa.array(came.weights)],
        names=[*probe.schema.names, *fold.fields.names, WEIGHT],
    )
