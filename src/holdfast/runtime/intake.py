"""What the sources of an epoch are told when it went through: positions, event times, counts."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.connectors.base import SourceReader, rows_of
from holdfast.runtime.lag import LagMeter
from holdfast.runtime.planner import Plan
from holdfast.runtime.watermarks import Watermarks


def advance(
    plan: Plan, readers: Mapping[str, SourceReader], marks: Watermarks, meter: LagMeter
) -> tuple[dict[str, int], int]:
    """Move every source behind its split.

    Args:
        plan: of the epoch, after its job.
        readers: the sources.
        marks: learn the newest event times.
        meter: learns how large rows are.

    Returns:
        Rows read by source, those included that could not be read; and rows too far in the future.
    """
    by_source, future = dict[str, int](), 0
    for name, split in plan.splits.items():
        readers[name].advance(split)
        observed = plan.observed.get(name)
        observation = observed.read() if observed else None
        marks.seen(name, observation.newest_us if observation else None)
        future += observation.future if observation else 0
        bad = plan.quality.bad.get(name)
        if bad is not None:
            counted: int | None = bad.rows
        else:
            counted = observation.rows if observation else plan.counted.get(name)
        rows = rows_of(readers[name], split, counted, plan.scans)
        meter.read(name, split, rows)
        by_source[name] = rows
    return by_source, future
