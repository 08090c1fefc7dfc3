"""A trace next to a model that knows the right answer: a dict (latest) or a Counter (bag)."""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from holdfast.ids import SeededIds
from holdfast.state import (
    DELETED,
    HASH,
    WEIGHT,
    BagPartition,
    CompactionPolicy,
    LatestPartition,
    RunSource,
    RunTarget,
    RunWriterOptions,
    TraceReader,
    TraceSchema,
    diff,
    partition_range,
    partition_table,
    plan_compaction,
    plan_full_compaction,
    replace,
    run_compaction,
    vnodes_of,
)
from holdfast.state.compaction import _plan
from holdfast.state.partition import layers, run_slices
from holdfast.storage.memory import MemoryStorage

UTC = dt.UTC
EPOCH = dt.datetime(2024, 1, 1, tzinfo=UTC)


def _time(r):
    return EPOCH + dt.timedelta(seconds=r.randrange(12))


def _maybe(make):
    return lambda r: None if r.random() < 0.12 else make(r)


# Domains are small on purpose: keys must meet again.
KEYS = {
    "int64": (pa.int64(), _maybe(lambda r: r.randrange(-9, 9))),
    "int8": (pa.int8(), _maybe(lambda r: r.randrange(-9, 9))),
    "bool": (pa.bool_(), _maybe(lambda r: r.random() < 0.5)),
    "string": (
        pa.string(),
        _maybe(lambda r: r.choice(["", "a", "ab", "b", "ä", "a\0", "abc" * 9])),
    ),
    "large_string": (pa.large_string(), _maybe(lambda r: r.choice(["", "a", "ab", "b"]))),
    "binary": (pa.binary(), _maybe(lambda r: r.choice([b"", b"\0", b"\0\0", b"x"]))),
    "fixed_binary": (pa.binary(2), _maybe(lambda r: r.choice([b"aa", b"\0\0", b"ab"]))),
    "decimal": (
        pa.decimal128(20, 4),
        _maybe(lambda r: decimal.Decimal(r.randrange(-9, 9)).scaleb(-4)),
    ),
    "decimal256": (pa.decimal256(60, 2), _maybe(lambda r: decimal.Decimal(r.randrange(-9, 9)))),
    "timestamp": (pa.timestamp("us", tz="UTC"), _maybe(_time)),
    "date": (pa.date32(), _maybe(lambda r: dt.date(2024, 1, 1 + r.randrange(12)))),
    "duration": (pa.duration("us"), _maybe(lambda r: dt.timedelta(seconds=r.randrange(9)))),
    "float64": (
        pa.float64(),
        _maybe(lambda r: r.choice([0.0, -0.0, math.nan, -math.nan, 1.5, -1.5, math.inf])),
    ),
    "float32": (pa.float32(), _maybe(lambda r: r.choice([0.0, -0.0, math.nan, 1.5, -math.inf]))),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        _maybe(
            lambda r: {"a": r.choice([None, 1, 2]), "b": r.choice([None, "", "x", "xy"])},
        ),
    ),
    "struct_float": (
        pa.struct([("a", pa.float64()), ("c", pa.struct([("d", pa.float32())]))]),
        _maybe(
            lambda r: {
                "a": r.choice([None, 0.0, -0.0, math.nan]),
                "c": r.choice([None, {"d": -0.0}, {"d": 0.0}, {"d": None}]),
            }
        ),
    ),
    "list": (
        pa.list_(pa.float64()),
        _maybe(
            lambda r: [r.choice([None, 0.0, -0.0, math.nan, 2.0]) for _ in range(r.randrange(3))]
        ),
    ),
    "fixed_list": (
        pa.list_(pa.float32(), 2),
        _maybe(lambda r: [r.choice([None, 0.0, -0.0, math.nan]) for _ in range(2)]),
    ),
    "null": (pa.null(), lambda r: None),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), _maybe(lambda r: r.choice("abcdef"))),
}

VALUES = {
    "int64": (pa.int64(), _maybe(lambda r: r.randrange(4))),
    "text": (pa.string(), _maybe(lambda r: "v" * r.randrange(4))),
    "list": (
        pa.list_(pa.string()),
        _maybe(lambda r: [r.choice([None, "", "p", "pq"]) for _ in range(r.randrange(3))]),
    ),
    "map": (
        pa.map_(pa.string(), pa.float64()),
        _maybe(lambda r: [(k, r.choice([None, 1.0, -0.0])) for k in "ab"[: r.randrange(3)]]),
    ),
    "struct": (
        pa.struct([("x", pa.list_(pa.int16())), ("y", pa.bool_())]),
        _maybe(lambda r: {"x": r.choice([None, [], [1], [1, None]]), "y": r.choice([True, None])}),
    ),
}


def canon(value):
    """A hashable stand-in that is equal where Spark's GROUP BY says equal."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, canon(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(canon(item) for item in value)
    return value


def stable_hash(key, mode):
    """64 bits of a key; `cut` keeps the top 3, `low` the bottom 3: collisions everywhere."""
    raw = int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "big")
    return {"full": raw, "cut": raw & (7 << 61), "low": raw & 7}[mode]


@dataclass
class Point:
    """A restore point: the runs and what they must mean."""

    runs: list
    model: dict
    bound: int | None


@dataclass
class World:
    """One trace, its model and its history."""

    kind: str
    keys: list
    value: str
    mode: str = "full"
    seed: int = 0
    timed: bool = False
    storage: object = None
    options: RunWriterOptions = field(default_factory=lambda: RunWriterOptions(rows_max=7))
    cache: object = None

    def __post_init__(self):
        self.storage = self.storage or MemoryStorage()
        self.random = random.Random(self.seed)
        self.ids = SeededIds(self.seed)
        names = [(f"k{i}", KEYS[key][0]) for i, key in enumerate(self.keys)]
        values = [("v", VALUES[self.value][0])]
        if self.timed:
            values.append(("t", pa.timestamp("us", tz="UTC")))
        self.schema = TraceSchema(
            self.kind_of(), pa.schema(names), pa.schema(values), "t" if self.timed else None
        )
        self.raw = pa.schema([*names, *values])
        self.source = RunSource(self.storage, cache=self.cache)
        self.runs, self.epoch, self.bound = [], 0, None
        self.model = {} if self.kind == "latest" else Counter()
        self.history = []

    def kind_of(self):
        from holdfast.state import TraceKind

        return TraceKind(self.kind)

    # Rows

    def make_rows(self, count):
        rows = []
        for _ in range(count):
            key = [KEYS[name][1](self.random) for name in self.keys]
            value = [VALUES[self.value][1](self.random)]
            if self.timed:
                value.append(None if self.random.random() < 0.1 else _time(self.random))
            if self.kind == "latest":
                marker = self.random.random() < 0.25
            else:
                marker = self.random.choice([1, 1, 1, 2, -1, -1, -2, 0])
            rows.append((key, value, marker))
        return rows

    def hash_of(self, key):
        return stable_hash(canon(key), self.mode)

    def table(self, rows):
        columns = list(zip(*[key + value for key, value, _ in rows], strict=True)) or [
            [] for _ in self.raw
        ]
        arrays = [pa.array(list(c), f.type) for c, f in zip(columns, self.raw, strict=True)]
        hashes = np.array([self.hash_of(key) for key, _, _ in rows], np.uint64)
        if self.random.random() < 0.5:
            hashes = hashes.view(np.int64)  # what Spark sends
        marker, kind = (DELETED, pa.bool_()) if self.kind == "latest" else (WEIGHT, pa.int64())
        markers = pa.array([m for _, _, m in rows], kind)
        return pa.table([pa.array(hashes), markers, *arrays], names=[HASH, marker, *self.raw.names])

    # Steps

    def step(self, rows, partitions, *, retry=False):
        """One epoch: look up and apply in every partition, as Spark tasks would."""
        self.epoch += 1
        table = self.table(rows)
        where = partition_table(partitions)[vnodes_of(table[HASH].to_numpy().view(np.uint64))]
        fresh = []
        for partition in range(partitions):
            mine = np.flatnonzero(where == partition)
            part = table.take(pa.array(mine))
            with self.open(partition, partitions) as opened:
                self.check_lookup(opened, part, [rows[i] for i in mine])
                for _ in range(2 if retry else 1):
                    info = opened.apply(
                        part, self.storage, self.target(partition, partitions), options=self.options
                    )
            if info is not None:
                fresh.append(info)
        self.runs = [*self.runs, *fresh]
        for key, value, marker in rows:
            self.learn(canon(key), canon(value), marker, value)
        self.save()

    def learn(self, key, value, marker, raw):
        time = raw[1] if self.timed else None
        if self.kind == "bag":
            self.model[(key, value, time)] += marker
        elif marker:
            self.model.pop(key, None)
        else:
            self.model[key] = (value, time)

    def open(self, partition, partitions):
        cls = LatestPartition if self.kind == "latest" else BagPartition
        return cls.open(
            self.runs, self.source, self.schema, partition=partition, partitions=partitions,
            time_bound_us=self.bound,
        )  # fmt: skip

    def target(self, partition, partitions):
        return RunTarget(
            checkpoint=self.ids.checkpoint_id(1), operator="op", partition=partition,
            partitions=partitions, attempt=self.ids.token(), epoch=self.epoch,
        )  # fmt: skip

    def visible(self):
        """The model without what is behind the time bound and without zeros."""

        def live(time):
            return self.bound is None or time is None or micros(time) >= self.bound

        if self.kind == "latest":
            return {k: v for k, (v, time) in self.model.items() if live(time)}
        return Counter({(k, v): n for (k, v, t), n in self.model.items() if n and live(t)})

    def check_lookup(self, opened, table, rows):
        answer = opened.lookup(table.drop_columns([DELETED if self.kind == "latest" else WEIGHT]))
        visible = self.visible()
        keys = [canon(key) for key, _, _ in rows]
        if self.kind == "latest":
            got = [
                canon(list(row.values())) if found else None
                for row, found in zip(answer.values.to_pylist(), answer.found.tolist(), strict=True)
            ]
            assert got == [visible.get(key) for key in keys]
            return
        width = len(self.keys)
        got = [Counter() for _ in rows]
        for probe, weight, row in zip(
            answer.probes.tolist(), answer.weights.tolist(), answer.rows.to_pylist(), strict=True
        ):
            cells = list(row.values())
            assert canon(cells[:width]) == keys[probe]
            assert canon(cells[width:]) not in got[probe]
            got[probe][canon(cells[width:])] = weight
        by_key = {}
        for (k, v), n in visible.items():
            by_key.setdefault(k, Counter())[v] = n
        assert got == [by_key.get(key, Counter()) for key in keys]
        bounds = answer.offsets
        assert [int(b - a) for a, b in itertools.pairwise(bounds)] == [len(c) for c in got]

    def merge(self, partition, partitions, *, full=False, runs=None):
        """Plan and carry out one merge over `runs` (default: the current ones)."""
        runs = self.runs if runs is None else runs
        policy = CompactionPolicy(fanout=2, tier_bytes=self.random.choice([1, 4096, 1 << 20]))
        if full:
            plan = plan_full_compaction(runs, partition, partitions)
        elif self.random.random() < 0.5:
            plan = plan_compaction(runs, partition, partitions, policy)
        else:
            plan = self.any_plan(runs, partition, partitions)
        if plan is None:
            return None
        return run_compaction(
            plan, self.storage, self.source, self.schema, self.target(partition, partitions),
            time_bound_us=self.bound, options=self.options,
        )  # fmt: skip

    def any_plan(self, runs, partition, partitions):
        """A merge of any neighbouring layers, also where no policy would choose them."""
        within = partition_range(partition, partitions)
        found = layers(run_slices(runs, within))
        if len(found) < 2:
            return None
        start = self.random.randrange(len(found) - 1)
        return _plan(found, (start, self.random.randrange(start + 2, len(found) + 1)), within)

    def adopt(self, merged):
        if merged is not None:
            self.runs = replace(self.runs, merged)
            self.save()

    def save(self):
        self.history.append(Point(list(self.runs), dict(self.model), self.bound))

    def restore(self, point):
        self.runs, self.bound = list(point.runs), point.bound
        self.model = dict(point.model) if self.kind == "latest" else Counter(point.model)
        self.save()

    def raise_bound(self, seconds):
        bound = micros(EPOCH + dt.timedelta(seconds=seconds))
        self.bound = max(bound, self.bound or 0)
        self.save()

    # Checks

    def reader(self, point=None):
        runs, bound = (point.runs, point.bound) if point else (self.runs, self.bound)
        return TraceReader(
            runs=tuple(runs), source=self.source, schema=self.schema, time_bound_us=bound,
            window_bytes=self.random.choice([1, 300, 1 << 20]),
        )  # fmt: skip

    def check_whole(self):
        self.check_rows(self.reader().table().to_pylist())
        self.check_scan()

    def check_scan(self):
        """The unordered scan has exactly the same rows, whatever its windows."""
        reader = self.reader()
        scan = reader.scan(window_rows=self.random.choice([1, 5, 1 << 18]))
        for _ in range(2):  # it can be read again
            batches = scan.batches(reader.columns())
            self.check_rows([row for batch in batches for row in batch.to_pylist()])
        scan.close()

    def check_rows(self, rows):
        width = len(self.keys)
        if self.kind == "latest":
            got = {}
            for row in rows:
                cells = list(row.values())
                assert canon(cells[:width]) not in got
                got[canon(cells[:width])] = canon(cells[width:])
        else:
            got = Counter()
            for row in rows:
                cells = list(row.values())
                assert (canon(cells[1 : width + 1]), canon(cells[width + 1 :])) not in got
                got[canon(cells[1 : width + 1]), canon(cells[width + 1 :])] = cells[0]
        assert got == self.visible()

    def check_diff(self, before, after):
        changes = Counter()
        width = len(self.keys)
        for batch in diff(self.reader(before), self.reader(after)):
            for row in batch.to_pylist():
                cells = list(row.values())
                changes[canon(cells[1 : width + 1]), canon(cells[width + 1 :])] += cells[0]
        sides = []
        current = self.model, self.bound
        for point in (before, after):
            self.model, self.bound = point.model, point.bound
            seen = self.visible()
            sides.append(seen if self.kind == "bag" else Counter(dict.fromkeys(seen.items(), 1)))
        self.model, self.bound = current
        expected = Counter(sides[1])
        expected.subtract(sides[0])
        assert {k: n for k, n in changes.items() if n} == {k: n for k, n in expected.items() if n}


def micros(time):
    return int((time - dt.datetime(1970, 1, 1, tzinfo=UTC)) / dt.timedelta(microseconds=1))
