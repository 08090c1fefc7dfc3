"""Source: where a source without a checkpoint begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.connectors.kafka.client import Admin, Partition, refuse

Start = str | datetime | Mapping[str, Mapping[int, int]]
"""`earliest`, `latest`, a time (ISO text or datetime), or offsets by topic and partition."""

_REMEDY = 'say "earliest", "latest", a time such as "2026-01-31T00:00:00Z", or {"topic": {0: 17}}'


def check_start(start: Any) -> Start:
    """A start that can be understood; texts of times become datetimes."""
    if start in ("earliest", "latest") or isinstance(start, datetime):
        return start if isinstance(start, str) else _zoned(start)
    if isinstance(start, str):
        try:
            return _zoned(datetime.fromisoformat(start))
        except ValueError:
            pass
    if isinstance(start, Mapping) and all(
        isinstance(parts, Mapping)
        and all(isinstance(n, int) and isinstance(o, int) and o >= 0 for n, o in parts.items())
        for parts in start.values()
    ):
        return {str(topic): dict(parts) for topic, parts in start.items()}
    return refuse(
        "the start cannot be understood",
        kind="invalid_argument",
        remedy=_REMEDY,
        start=repr(start)[:80],
    )


def start_offsets(
    admin: Admin, start: Start, partitions: Sequence[Partition]
) -> dict[Partition, int]:
    """The first offset to read of every partition."""
    if isinstance(start, datetime):
        found = admin.offsets(partitions, "time", round(start.timestamp() * 1e3))
        behind_all = [key for key, offset in found.items() if offset < 0]
        return {**found, **admin.offsets(behind_all, "latest")}
    if isinstance(start, str):
        return admin.offsets(partitions, start)
    strange = {(t, n) for t, parts in start.items() for n in parts} - set(partitions)
    if strange:
        topic, number = min(strange)
        refuse(
            "the start names a partition that the source does not read",
            kind="unknown_partition",
            remedy="correct the topic or the number",
            topic=topic,
            partition=number,
        )
    first = admin.offsets(partitions, "earliest")
    return {(t, n): start.get(t, {}).get(n, first[t, n]) for t, n in partitions}


def _zoned(at: datetime) -> datetime:
    """A time without a zone is UTC."""
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
