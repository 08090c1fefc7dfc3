"""Positions: where a source stands, typed and per source partition.

Invariants:
- Two positions of one connector have an order: equal, before, after, or neither (`diverged`).
- A partition that only the later position has is progress; one that vanished is divergence.
- A position never holds a single number for a source that has partitions.
- Whatever is not built in has an open position: named offsets, and how they compare.

Spec: spec/format-v2.md, section 3.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec

from holdfast.errors import InvalidInputError
from holdfast.ids import NAME_PATTERN

Order = Literal["equal", "before", "after", "diverged", "unordered"]
OffsetOrder = Literal["number", "text", "fixed", "none"]

_LSN = re.compile(r"[0-9A-F]{1,8}/[0-9A-F]{1,8}")
_GTID = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::[1-9][0-9]{0,18}(?:-[1-9][0-9]{0,18})?)+"
)
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_INT64_MAX = 2**63 - 1

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_NUMBER = re.compile(r"[0-9]{1,64}")
_OFFSET_MAX = 4_096

Intervals = tuple[tuple[int, int], ...]
Point = int | str | tuple[int, ...] | Intervals


class _Position(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="connector",
):
    def points(self) -> Mapping[str, Point]:
        """The place in every partition, comparable within the partition."""
        raise NotImplementedError

    def reached(self, earlier: Point, later: Point) -> bool:
        """Whether `later` contains everything that `earlier` does."""
        return later >= earlier  # type: ignore[operator]

    def contains(self, inner: Any) -> bool:
        """Whether every partition of `inner`, of the same type, is here and reached."""
        there, here = self.points(), inner.points()
        return all(
            name in there and self.reached(point, there[name]) for name, point in here.items()
        )

    def beyond_v1(self) -> bool:
        """Whether it says something that format 1 cannot."""
        return False


class _Part(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    pass


class KafkaPosition(_Position, frozen=True, tag="kafka"):
    """Next offset to read, by topic and partition.

    topic_ids: Kafka's id of a topic, where known. A topic that was made again has another one, so
    that its offsets mean other records.
    """

    topics: dict[str, dict[str, int]]
    topic_ids: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Offsets are not negative; partitions are numbers; ids belong to topics."""
        for topic, name in self.topic_ids.items():
            if topic not in self.topics or not _TOPIC_ID.fullmatch(name):
                _refuse("not the id of a topic of this position", topic=topic, id=name[:40])
        for topic, offsets in self.topics.items():
            for partition, offset in offsets.items():
                if not _PARTITION.fullmatch(partition):
                    _refuse("Kafka partition is not a number", topic=topic, partition=partition)
                _check_count(offset, "Kafka offset")

    def points(self) -> Mapping[str, Point]:
        """Keyed by topic and partition; an id that is known must stay."""
        found: dict[str, Point] = {f"{topic}/id": name for topic, name in self.topic_ids.items()}
        for topic, offsets in self.topics.items():
            for partition, offset in offsets.items():
                found[f"{topic}/{partition}"] = offset
        return found

    def reached(self, earlier: Point, later: Point) -> bool:
        """Offsets grow, ids are equal."""
        return later == earlier if isinstance(earlier, str) else later >= earlier  # type: ignore[operator]

    def beyond_v1(self) -> bool:
        """Ids of topics."""
        return bool(self.topic_ids)


class PostgresSnapshot(_Part, frozen=True):
    """Which transactions a snapshot sees, as `pg_snapshot` has them."""

    xmin: int
    xmax: int
    xip: list[int] = []

    def __post_init__(self) -> None:
        """Transactions in progress lie between the bounds, in order."""
        if not 0 < self.xmin <= self.xmax <= _INT64_MAX:
            _refuse("not a PostgreSQL snapshot", xmin=self.xmin, xmax=self.xmax)
        if sorted(set(self.xip)) != self.xip or any(
            not self.xmin <= xid < self.xmax for xid in self.xip
        ):
            _refuse("not a PostgreSQL snapshot", xip=str(self.xip)[:100])


class TableProgress(_Part, frozen=True):
    """How far the snapshot of one table was read: rows, the key after which it continues, done."""

    rows: int = 0
    after: list[str] = []
    done: bool = False

    def __post_init__(self) -> None:
        """Rows are not negative."""
        _check_count(self.rows, "rows of a snapshot")

    def reached(self, earlier: TableProgress) -> bool:
        """The same place, or further on: more rows, or as many and done."""
        if self == earlier:
            return True
        return not earlier.done and (
            self.rows > earlier.rows or (self.done and self.rows == earlier.rows)
        )


class PostgresPosition(_Position, frozen=True, tag="postgres"):
    """Log sequence number that has been processed, by replication slot.

    While `phase` is `snapshot`, `snapshot` and `tables` say which one is read, and how far.
    """

    slots: dict[str, str]
    phase: Literal["stream", "snapshot"] = "stream"
    snapshot: PostgresSnapshot | None = None
    tables: dict[str, TableProgress] = {}

    def __post_init__(self) -> None:
        """An LSN is two hexadecimal halves; a snapshot belongs to its phase."""
        for slot, lsn in self.slots.items():
            if not _LSN.fullmatch(lsn):
                _refuse("not a PostgreSQL LSN", slot=slot, lsn=lsn[:40], like="16/B374D848")
        if (self.phase == "snapshot") != (self.snapshot is not None) or (
            self.tables and self.snapshot is None
        ):
            _refuse("snapshot and phase do not belong together", phase=self.phase)

    def contains(self, inner: Any) -> bool:
        """The stream follows the snapshot; two snapshots compare only when they are the same."""
        if not super().contains(inner):
            return False
        if inner.phase == "stream" or self.phase == "stream":
            return bool(self.phase == "stream")
        return self.snapshot == inner.snapshot and all(
            name in self.tables and self.tables[name].reached(progress)
            for name, progress in inner.tables.items()
        )

    def beyond_v1(self) -> bool:
        """Phases."""
        return self.phase != "stream"

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


class _TablePosition(_Position, frozen=True):
    """What tables of versions share: a snapshot is read first, then what follows it."""

    def place(self) -> tuple[str, str, tuple[int, int], object]:
        """Table, phase, (version, files), and what tells two snapshots of one version apart."""
        raise NotImplementedError

    def contains(self, inner: Any) -> bool:
        """Following contains the snapshot that it began with; two snapshots must be the same."""
        table, phase, point, which = self.place()
        other, before, reached, mine = inner.place()
        if table != other or (point[0] == reached[0] and which != mine):
            return False
        if phase == before == "follow":
            return bool(point >= reached)
        if phase == "follow":
            return bool(point[0] >= reached[0])
        return bool(before == "snapshot" and point[0] == reached[0] and point >= reached)

    def points(self) -> Mapping[str, Point]:
        """Keyed by table id: a replaced table diverges."""
        table, _, point, _ = self.place()
        return {table: point}


class DeltaPosition(_TablePosition, frozen=True, tag="delta"):
    """Version of a Delta table, and how many files of that version were read.

    phase: `snapshot` while the table as of `version` is read, `follow` for the changes since.
    """

    table: str
    version: int
    files: int = 0
    phase: Literal["follow", "snapshot"] = "follow"

    def __post_init__(self) -> None:
        """Versions are not negative."""
        _check_count(self.version, "Delta version")
        _check_count(self.files, "Delta file count")

    def place(self) -> tuple[str, str, tuple[int, int], object]:
        """By version and files."""
        return self.table, self.phase, (self.version, self.files), None

    def beyond_v1(self) -> bool:
        """Phases."""
        return self.phase != "follow"


class IcebergPosition(_TablePosition, frozen=True, tag="iceberg"):
    """Snapshot of an Iceberg table, and how many files of it were read.

    table: its UUID. sequence: the snapshot's sequence number, which orders; snapshot: its id, which
    tells two snapshots of one number apart (a branch that was replaced).
    """

    table: str
    snapshot: int
    sequence: int
    files: int = 0
    phase: Literal["follow", "snapshot"] = "follow"

    def __post_init__(self) -> None:
        """Numbers are not negative."""
        for name in ("snapshot", "sequence", "files"):
            _check_count(getattr(self, name), f"Iceberg {name}")

    def place(self) -> tuple[str, str, tuple[int, int], object]:
        """By version and files."""
        return self.table, self.phase, (self.sequence, self.files), self.snapshot

    def beyond_v1(self) -> bool:
        """The whole connector."""
        return True


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


class FilePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of which only the first `rows` were read."""

    path: str
    size: int
    modified_us: int
    digest: str
    rows: int


class FilesPosition(_Position, frozen=True, tag="files"):
    """How many files were read and where the log of them lies.

    `log` is the path of a file in the same checkpoint's inventory, or None while the list is short
    enough to stand in `recent`. `forgotten`: so many of the first files are no longer listed. Names
    up to `after`, and files that were last changed before `old_us`, count as read. `part`: the file
    that comes next, if rows of it were read.
    """

    files: int
    recent: list[str] = []
    log: str | None = None
    forgotten: int = 0
    after: str | None = None
    old_us: int | None = None
    part: FilePart | None = None

    def __post_init__(self) -> None:
        """Counts are not negative."""
        _check_count(self.files, "file count")
        _check_count(self.forgotten, "count of forgotten files")
        _check_count(0 if self.part is None else self.part.rows, "count of rows")

    def contains(self, inner: Any) -> bool:
        """At least as many files; of as many, at least as many rows of the next one."""
        mine, yours = (0 if part is None else part.rows for part in (self.part, inner.part))
        return bool((self.files, mine) >= (inner.files, yours))

    def beyond_v1(self) -> bool:
        """A file that was read in part."""
        return self.part is not None

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


class OpenPosition(_Position, frozen=True, tag="open"):
    """Offsets of a source that Holdfast does not know, by name.

    kind: which source. order: how offsets of one name compare: as decimal `number`s; as `text` by
    code points; as text of one `fixed` length; or not at all (`none`): then another offset is taken
    for progress. meta: notes for the source, no part of the order.
    """

    kind: str
    offsets: dict[str, str]
    order: OffsetOrder
    meta: dict[str, str] = {}

    def __post_init__(self) -> None:
        """The kind is a name; offsets are what their order needs."""
        if not NAME_PATTERN.fullmatch(self.kind):
            _refuse("kind of an open position is not a name", value=self.kind[:80])
        for name, offset in self.offsets.items():
            if len(name) > _OFFSET_MAX or len(offset) > _OFFSET_MAX:
                _refuse("offset is too long", name=name[:80], limit=_OFFSET_MAX)
            if self.order == "number" and not _NUMBER.fullmatch(offset):
                _refuse("offset is not a number", name=name[:80], offset=offset[:80])
        if sum(len(k) + len(v) for k, v in self.meta.items()) > _OFFSET_MAX:
            _refuse("notes of an open position are too long", limit=_OFFSET_MAX)

    def points(self) -> Mapping[str, Point]:
        """Keyed by the source's own names."""
        return dict(self.offsets)

    def reached(self, earlier: Point, later: Point) -> bool:
        """By the order that the position names."""
        before, after = str(earlier), str(later)
        if self.order == "number":
            return int(after) >= int(before)
        if self.order == "none" or (self.order == "fixed" and len(before) != len(after)):
            return after == before
        return after >= before

    def contains(self, inner: Any) -> bool:
        """Of one kind, compared in one way."""
        return (self.kind, self.order) == (inner.kind, inner.order) and super().contains(inner)

    def beyond_v1(self) -> bool:
        """The whole connector."""
        return True


Position = (
    KafkaPosition
    | PostgresPosition
    | MysqlPosition
    | DeltaPosition
    | IcebergPosition
    | JournalPosition
    | FilesPosition
    | CounterPosition
    | OpenPosition
)


def compare(left: Position, right: Position) -> Order:
    """How `left` stands to `right`; `unordered`: elsewhere, and nobody can say which is later."""
    if type(left) is not type(right):
        return "diverged"
    forward, backward = right.contains(left), left.contains(right)
    if forward and backward:
        return "equal"
    if forward:
        return "before"
    if backward:
        return "after"
    return "unordered" if _unordered(left, right) else "diverged"


def _unordered(left: Position, right: Position) -> bool:
    """Offsets without an order that kept all their names."""
    return (
        isinstance(left, OpenPosition)
        and isinstance(right, OpenPosition)
        and left.order == right.order == "none"
        and left.kind == right.kind
        and left.offsets.keys() <= right.offsets.keys()
    )


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
