"""Stores with real traces next to a dict that knows the right answer, and the command to look at them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from holdfast.cli.main import main
from holdfast.state import (
    DELETED,
    HASH,
    LatestPartition,
    RunSource,
    RunTarget,
    TraceKind,
    TraceSchema,
    partition_table,
    put_trace,
    runs_of,
)
from tests.helpers.paths import SOURCE

TOPOLOGY = hf.checkpoint.topology(
    hf.checkpoint.Part(name="orders", kind="source", what="counter"),
    hf.checkpoint.Part(name="totals", kind="operator", what="aggregate", inputs=["orders"], keys=["customer"],
            stateful=True),
    hf.checkpoint.Part(name="note", kind="operator", what="note", inputs=["orders"], stateful=True),
    hf.checkpoint.Part(name="out", kind="sink", what="parquet", inputs=["totals"]),
)  # fmt: skip
SCHEMA = TraceSchema.latest(
    pa.schema([("customer", pa.string())]),
    pa.schema([("total", pa.int64()), ("orders", pa.int64())]),
)
PARTITIONS = 2
ANSI = re.compile(r"\x1b\[")


def key_hash(key):
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little", signed=True)


@dataclass
class World:
    """A pipeline, and what each of its checkpoints must hold."""

    root: object
    name: str = "orders"
    replay: str = "deduplicates"
    options: dict | None = None
    settings: hf.Settings = field(default_factory=lambda: hf.Settings(retain=100))
    truth: dict = field(default_factory=dict)
    ids: list = field(default_factory=list)
    store: object = None

    @property
    def address(self):
        return f"{self.root}/{self.name}"

    @property
    def storage(self):
        if isinstance(self.root, str) and self.options:
            return hf.checkpoint.open_storage(self.root, options=self.options)
        return hf.checkpoint.open_storage(self.root)

    @property
    def reader(self):
        return hf.checkpoint.read_store(self.storage, self.name)

    def open(self, **more):
        self.store = hf.checkpoint.open_store(
            self.storage, self.name, topology=TOPOLOGY, settings=self.settings, **more
        )
        return self.store

    def close(self):
        self.store.close()
        self.store = None

    def grow(self, *changes, settle=True, label=None):
        """Commit one checkpoint for each {customer: total or None}; opens the store if need be."""
        own = self.store is None
        store = self.store or self.open()
        for change in changes:
            self._commit(store, change, settle, label)
        if own:
            self.close()
        return self

    def _commit(self, store, change, settle, label):
        before = store.current
        state = dict(self.truth.get(before.checkpoint, {})) if before else {}
        rows = {
            k: None if v is None else (v, state.get(k, (0, 0))[1] + 1) for k, v in change.items()
        }
        draft = store.draft(label=label)
        runs = list(runs_of(before, "totals")) if before else []
        runs += self._runs(store, draft, runs, rows)
        for key, value in rows.items():
            state.pop(key, None) if value is None else state.update({key: value})
        put_trace(draft, "totals", TraceKind.LATEST, runs, partitions=PARTITIONS, rows=len(state),
                  keys=len(state), counts="live")  # fmt: skip
        draft.put_small("note", f"{len(state)} keys".encode())
        done = (before.processed if before else 0) + len(change)
        draft.set_source("orders", hf.checkpoint.CounterPosition(partitions={"0": done, "1": draft.epoch}),
                         watermark_us=1_700_000_000_000_000 + draft.epoch * 1_000_000)  # fmt: skip
        draft.add_processed(len(change))
        draft.stage_sink("out", f"secret-token-{draft.epoch}", replay=self.replay)
        summary = store.commit(draft)
        self.truth[summary.checkpoint] = state
        self.ids.append(summary.checkpoint)
        if settle:
            store.record_outcome(summary.checkpoint, "out", "committed")

    def _runs(self, store, draft, runs, rows):
        table = partition_table(PARTITIONS)
        made = []
        for part in range(PARTITIONS):
            mine = {k: v for k, v in rows.items()
                    if table[(key_hash(k) % (1 << 64)) >> 56] == part}  # fmt: skip
            if not mine:
                continue
            source = RunSource(store.storage, pipeline=self.name)
            trace = LatestPartition.open(
                runs, source, SCHEMA, partition=part, partitions=PARTITIONS
            )
            target = RunTarget(
                checkpoint=draft.checkpoint, operator="totals", partition=part,
                partitions=PARTITIONS, attempt=f"{draft.epoch:08x}{part:08x}", epoch=draft.epoch,
                base=draft.parent, pipeline=self.name,
            )  # fmt: skip
            updates = pa.table({
                HASH: pa.array([key_hash(k) for k in mine], pa.int64()),
                DELETED: pa.array([v is None for v in mine.values()]),
                "customer": list(mine),
                "total": pa.array([v and v[0] for v in mine.values()], pa.int64()),
                "orders": pa.array([v and v[1] for v in mine.values()], pa.int64()),
            })  # fmt: skip
            run = trace.apply(updates, store.storage, target)
            made += [run] if run is not None else []
        return made

    def file_of(self, pattern, which=-1):
        """A stored file on disk."""
        return sorted(Path(self.root, self.name).glob(pattern))[which]


def standard(root, **more):
    """Four epochs: keys come, change and go."""
    return World(root, **more).grow(
        {f"c{i}": i for i in range(20)},
        {"c1": 100, "new": 7},
        {"c2": None, "c3": 33},
        {"c4": 44, "late": 1},
    )


def damage(path, how="flip"):
    """Flip a bit in the middle of a file, cut it, or remove it."""
    if how == "remove":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(bytes(data))


@dataclass
class Answer:
    """What the command said."""

    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def command():
    """The installed console command, or the module where it is not installed."""
    script = Path(sys.executable).with_name("holdfast")
    return [str(script)] if script.exists() else [sys.executable, "-m", "holdfast"]


def environment(**more):
    known = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "COLUMNS", "LINES"))}
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(SOURCE)])
    return {**known, "PYTHONPATH": path, **more}


def holdfast(*args, env=None, **more):
    """Run the command in a process of its own."""
    done = subprocess.run(
        [*command(), *map(str, args)], capture_output=True, text=True, timeout=120, check=False,
        env=environment(**(env or {})), **more,
    )  # fmt: skip
    return Answer(done.returncode, done.stdout, done.stderr)


def call(*args):
    """The same in this process: for the many cases where only the message matters."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(arg) for arg in args])
    return Answer(code, out.getvalue(), err.getvalue())


def snapshot(root):
    """Names, bytes and times of everything below a directory, directories included."""
    found = {}
    for path in sorted([Path(root), *Path(root).rglob("*")]):
        stat = path.stat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (content, stat.st_mtime_ns, stat.st_mode, stat.st_ino)
    return found
