"""Positions: where a source stands, typed and per source partition.

Invariants:
- Two positions of one connector have an order: equal, before, after, or neither (`diverged`).
- A partition that only the later position has is progress; one that vanished is divergence.
- A position never holds a single number for a source that has partitions.

Spec: spec/format-v1.md, section 3.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from holdfast.errors import InvalidInputError

Order = Literal["equal", "before", "after", "diverged"]

_LSN = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}")
_GTID = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::[1-9][0-9]{0,18}(?:-[1-9][0-9]{0,18})?)+"
)
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_INT64_MAX = 2**63 - 1

Intervals = tuple[tuple[int, int], ...]
Point = int | tuple[int, ...] | Intervals


class _Position(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True,
    tag_field="connector",
):  # fmt: skip
    def points(self) -> Mapping[str, Point]:
        """The place in every partition, comparable within the partition."""
        raise NotImplementedError

    def reached(self, earlier: Point, later: Point) -> bool:
        """Whether `later` contains everything that `earlier` does."""
        return later >= earlier  # type: ignore[operator]


class KafkaPosition(_Position, frozen=True, tag="kafka"):
    """Next offset to read, by topic and partition."""

    topics: dict[str, dict[str, int]]

    def __post_init__(self) -> None:
        """Offsets are not negative; partitions are numbers."""
        for topic, offsets in self.topics.items():
            for partition, offset in offsets.items():
                if not _PARTITION.fullmatch(partition):
                    _refuse("Kafka partition is not a number", topic=topic, partition=partition)
                _check_count(offset, "Kafka offset")

    def points(self) -> Mapping[str, Point]:
        """Keyed by topic and partition."""
        return {
            f"{topic}/{partition}": offset
            for topic, offsets in self.topics.items()
            for partition, offset in offsets.items()
        }


class PostgresPosition(_Position, frozen=True, tag="postgres"):
    """Log sequence number that has been processed, by replication slot."""

    slots: dict[str, str]

    def __post_init__(self) -> None:
        """An LSN is two hexadecimal halves."""
        for slot, lsn in self.slots.items():
            if not _LSN.fullmatch(lsn):
                _refuse("not a PostgreSQL LSN", slot=slot, lsn=lsn[:40], like="16/B374D848")

    def points(self) -> Mapping[str, Point]:
        """Keyed by slot."""
        return {slot: lsn_number(lsn) for slot, lsn in self.slots.items()}


class MysqlPosition(_Position, frozen=True, tag="mysql"):
    """Executed GTID set, one entry for each server: `uuid:1-5:8`."""

    gtids: list[str]

    def __post_init__(self) -> None:
        """Each entry is a server's UUID and intervals; one entry for a server."""
        servers = [entry.split(":", 1)[0] for entry in self.gtids]
        if len(set(servers)) != len(servers):
            _refuse("a server appears twice in a GTID set", gtids=",".join(self.gtids)[:200])
        for entry in self.gtids:
            if not _GTID.fullmatch(entry) or not _ascending(entry):
                _refuse("not a GTID set", entry=entry[:100])

    def points(self) -> Mapping[str, Point]:
        """Keyed by server."""
        return {entry.split(":", 1)[0]: _intervals(entry) for entry in self.gtids}

    def reached(self, earlier: Point, later: Point) -> bool:
        """Whether every earlier interval lies inside a later one."""
        inner, outer = (cast("Intervals", side) for side in (earlier, later))
        return all(
            any(low <= first and last <= high for low, high in outer) for first, last in inner
        )


class DeltaPosition(_Position, frozen=True, tag="delta"):
    """Version of a Delta table, and how many files of that version were read."""

    table: str
    version: int
    files: int = 0

    def __post_init__(self) -> None:
        """Versions are not negative."""
        _check_count(self.version, "Delta version")
        _check_count(self.files, "Delta file count")

    def points(self) -> Mapping[str, Point]:
        """Keyed by table id: a replaced table diverges."""
        return {self.table: (self.version, self.files)}


class JournalPosition(_Position, frozen=True, tag="journal"):
    """Place in a journal, with the chain hash there."""

    journal: str
    segment: int
    offset: int
    sequence: int
    chain: str

    def __post_init__(self) -> None:
        """Numbers are not negative, the hash is 32 bytes."""
        for name in ("segment", "offset", "sequence"):
            _check_count(getattr(self, name), f"journal {name}")
        if not re.fullmatch(r"[0-9a-f]{64}", self.chain):
            _refuse("journal chain hash is not 64 hexadecimal digits", chain=self.chain[:80])

    def points(self) -> Mapping[str, Point]:
        """Keyed by journal id; the sequence orders."""
        return {self.journal: (self.sequence, self.segment, self.offset, int(self.chain, 16))}

    def reached(self, earlier: Point, later: Point) -> bool:
        """Further on, or at the very same place with the same history behind it."""
        before, after = (cast("tuple[int, ...]", side) for side in (earlier, later))
        return after[:3] > before[:3] or after == before


class FilesPosition(_Position, frozen=True, tag="files"):
    """How many files were read and where the log of them lies.

    `log` is the path of a file in the same checkpoint's inventory, or None while the list is short
    enough to stand in `recent`.
    """

    files: int
    recent: list[str] = []
    log: str | None = None

    def __post_init__(self) -> None:
        """The count is not negative."""
        _check_count(self.files, "file count")

    def points(self) -> Mapping[str, Point]:
        """One partition: files are read in the order of the log."""
        return {"files": self.files}


class CounterPosition(_Position, frozen=True, tag="counter"):
    """Next number, by partition: generators, sequence columns, anything that counts."""

    partitions: dict[str, int]

    def __post_init__(self) -> None:
        """Counts are not negative."""
        for partition, count in self.partitions.items():
            _check_count(count, f"count of partition {partition[:60]}")

    def points(self) -> Mapping[str, Point]:
        """Keyed by partition."""
        return self.partitions


Position = (
    KafkaPosition
    | PostgresPosition
    | MysqlPosition
    | DeltaPosition
    | JournalPosition
    | FilesPosition
    | CounterPosition
)


def compare(left: Position, right: Position) -> Order:
    """How `left` stands to `right`."""
    if type(left) is not type(right):
        return "diverged"
    forward, backward = _contains(right, left), _contains(left, right)
    if forward and backward:
        return "equal"
    if forward:
        return "before"
    return "after" if backward else "diverged"


def _contains(outer: Position, inner: Position) -> bool:
    there, here = outer.points(), inner.points()
    return all(name in there and outer.reached(point, there[name]) for name, point in here.items())


def lsn_number(lsn: str) -> int:
    """The 64-bit number that an LSN spells."""
    high, low = lsn.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def _intervals(entry: str) -> tuple[tuple[int, int], ...]:
    """The numbers of one server: sorted, overlapping and adjacent intervals joined."""
    pairs = []
    for interval in entry.split(":")[1:]:
        first, _, last = interval.partition("-")
        pairs.append((int(first), int(last or first)))
    joined: list[tuple[int, int]] = []
    for low, high in sorted(pairs):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def _ascending(entry: str) -> bool:
    pairs = (interval.partition("-") for interval in entry.split(":")[1:])
    return all(not last or int(first) <= int(last) for first, _, last in pairs)


def _check_count(value: int, what: str) -> None:
    if not 0 <= value <= _INT64_MAX:
        _refuse(f"{what} is out of range", value=value)


def _refuse(what: str, **facts: object) -> None:
    raise InvalidInputError(what, kind="invalid_position", remedy=None, **facts)
