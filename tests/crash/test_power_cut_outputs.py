"""Power cuts while outputs are published: no epoch is lost, doubled or half, at any system call."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import Settings
from holdfast.checkpoint import Part, open_store, topology
from holdfast.clock import ManualClock
from holdfast.connectors.base import OutputWriter, token_text
from holdfast.connectors.journal.sink import JournalSink
from holdfast.connectors.parquet.sink import Parquet
from holdfast.connectors.staging import Target, stage_rows
from holdfast.format.position import CounterPosition
from holdfast.ids import RandomIds
from holdfast.journal import JournalReader, Query
from holdfast.runtime.output_manager import Outputs
from holdfast.runtime.outputs import OWNED, history_of
from holdfast.storage.local import storage as local_storage
from holdfast.storage.open import StorageLocation, storage_of
from holdfast.testing import PowerCut, RecordingDisk, installed_disk
from tests.helpers.effort import SOAK, every

RANDOM_STATES = 10 if SOAK else 1
EPOCHS = 3
KINDS = ["changelog", "folded", "exchanged", "upsert", "upsert_tasks", "journal"]
UPSERTS = ("upsert", "upsert_tasks")
SHAPE = topology(
    Part(name="src", kind="source", what="counter"),
    Part(name="out", kind="sink", what="parquet", inputs=["src"]),
)


class World:
    """A store and one output; an epoch stages two rows and, in an upsert output, retracts one."""

    def __init__(self, home, kind: str) -> None:
        self.home, self.kind = home, kind
        self.place = StorageLocation(str(home / "cp"))
        path = str(home / "out")
        if kind == "journal":
            self.sink = JournalSink(path, entity="=e", kind="=k")
        else:
            mode = "upsert" if kind in UPSERTS else "changelog"
            compact_after = 2 if kind == "folded" else None
            limits = {"driver_bytes": 0} if kind == "upsert_tasks" else {}
            self.sink = Parquet(
                path, mode=mode, compact_after=compact_after, compact_grace_ms=0, **limits
            )

    def open(self) -> None:
        """As a start does: the store, the decisions about the output, what waits to be published."""
        settings = Settings(retain=2)
        self.store = open_store(
            self.place.url, "p", topology=SHAPE, settings=settings, clock=ManualClock()
        )
        writer = self.sink.open("out", "p", self.place, None)
        assert isinstance(writer, OutputWriter)
        self.writer, store = writer, self.store
        self.outputs = Outputs({"out": writer}, {})
        history = history_of(
            store.lineage, "p", store.current, store.list(), store.outcomes, int(store.epoch_next)
        )
        self.outputs.look(history, store.reader, store.list(), frozenset(), store.pending())
        self.outputs.act(store)
        store.publish_pending(self.outputs.handlers)
        problems = [token.status for token in store.pending()]
        assert not problems, problems
        assert self.outputs.asked("rebuild") == frozenset(), self.outputs.lines()

    def commit(self) -> None:
        """One checkpoint, whose rows were staged by a task."""
        checkpoint = self.store.reserve()
        draft = self.store.draft(checkpoint=checkpoint)
        epoch = int(draft.epoch)
        draft.set_source("src", CounterPosition(partitions={"0": epoch + 1}))
        draft.set_properties({**draft.properties, OWNED: "1"})
        location, directory = self.writer.staging(checkpoint)
        rows = {"x": [2 * epoch, 2 * epoch + 1], "_weight": [1, 1]}
        if self.kind in UPSERTS and epoch:
            rows = {"x": [*rows["x"], 2 * epoch - 1], "_weight": [1, 1, -1]}
        table = pa.table({name: pa.array(values, pa.int64()) for name, values in rows.items()})
        target = Target("out", location, by_slot=self.sink.by_slot)
        staged = stage_rows(target, directory, 0, table, ids=RandomIds(), durable=False)
        draft.stage_sink(
            "out",
            token_text(directory, [staged]),
            replay="retracts",
            storage=storage_of(location),
            files=[staged.path],
        )
        self.store.commit(draft)

    def publish(self) -> None:
        self.store.publish_pending(self.outputs.handlers)
        self.store.retain()

    def compact(self) -> None:
        requested = self.kind == "exchanged"
        if requested or self.outputs.compaction_due(self.store):
            self.outputs.compact(self.store, "out" if requested else None)

    def close(self) -> None:
        self.store.close()

    def expected(self) -> Counter:
        """The rows that the newest checkpoint of the store has given."""
        current = self.store.current
        return rows_after(self.kind, -1 if current is None else int(current.epoch))


def rows_after(kind: str, epoch: int) -> Counter:
    """What an output holds that has published epochs up to this one."""
    found = Counter(range(2 * epoch + 2))
    if kind in UPSERTS:
        found -= Counter(2 * e - 1 for e in range(1, epoch + 1))
    return found


def shown(home, kind: str) -> Counter:
    """What a plain reader sees."""
    out = home / "out"
    if kind == "journal":
        if not (out / "journal.meta").exists():
            return Counter()
        with JournalReader(out) as journal:
            events = journal.query(Query()).events()
        return Counter(json.loads(event.payload)["x"] for event in events)
    pattern = "*.parquet" if kind in UPSERTS else "hf_epoch=*/*.parquet"
    files = sorted(out.glob(pattern)) if out.exists() else []
    return Counter(x for file in files for x in pq.ParquetFile(file).read()["x"].to_pylist())


def record(root, kind: str, skip=()):
    """Run some epochs; the calls, and what had been published after how many of them."""
    disk = RecordingDisk(root, skip=skip)
    with installed_disk(disk):
        world = World(root, kind)
        world.open()
        ends = []
        for number in range(EPOCHS):
            world.commit()
            world.publish()
            ends.append((len(disk.calls), number))
        world.compact()
        world.close()
    return disk.calls, ends


def problem(state, kind: str, boot, least: int) -> str | None:
    """What is wrong after a power cut; None if readers and the next run find what they must."""
    shutil.rmtree(boot, ignore_errors=True)
    state.write_to(boot)
    try:
        now = shown(boot, kind)
        allowed = [rows_after(kind, least), rows_after(kind, least + 1)]
        if now not in allowed:
            return f"readers see {sorted(now.elements())}"
        world = World(boot, kind)
        world.open()
        if shown(boot, kind) != world.expected():
            return f"published {sorted(shown(boot, kind).elements())}"
        world.commit()
        world.publish()
        world.compact()
        if shown(boot, kind) != world.expected():
            return f"then published {sorted(shown(boot, kind).elements())}"
        world.close()
    except Exception as error:  # noqa: BLE001 - any failure to recover is the finding
        return f"{type(error).__name__}: {error}"
    return None


def problems(calls, ends, kind: str, boot, seeds: int, first: int = 0, step: int = 1):
    """Every moment and state that is not as it must be, one by one."""
    # The state before such a call is one of those after it.
    passing = ("write", "create", "mark")
    moments = [n for n, call in enumerate(calls) if not call.name.startswith(passing)]
    for cut in [*moments, len(calls)][first::step]:
        least = max((number for end, number in ends if end <= cut), default=-1)
        power = PowerCut(calls[:cut])
        states = [*power.worst(), *((f"seed {seed}", power.some(seed)) for seed in range(seeds))]
        for name, state in states:
            wrong = problem(state, kind, boot, least)
            if wrong:
                last = str(calls[cut - 1]) if cut else "nothing"
                yield f"after call {cut} ({last}), {name}: {wrong}"


@pytest.fixture(params=["syncfs", "fsync"])
def barrier(request, monkeypatch) -> str:
    """Whether one call makes a whole file system durable, or each file has its own."""
    whole = request.param == "syncfs"
    monkeypatch.setattr(local_storage, "filesystem_sync_reports_errors", lambda: whole)
    return request.param


@pytest.mark.parametrize("kind", KINDS)
def test_no_power_cut_costs_doubles_or_halves_an_epoch(kind, barrier, ram_path) -> None:
    """Whatever the disk has lost: readers see whole epochs, the next run publishes the rest."""
    (ram_path / "first").mkdir()
    calls, ends = record(ram_path / "first", kind)
    assert shown(ram_path / "first", kind) == rows_after(kind, EPOCHS - 1)
    if kind in ("folded", "exchanged"):
        assert {"symlink", "rename"} <= {call.name for call in calls}
        epochs = [n for n in os.listdir(ram_path / "first" / "out") if n.startswith("hf_epoch=")]
        assert len(epochs) < EPOCHS
    step = every(1, 2)  # in `make test`, one barrier takes the even moments, the other the odd ones
    first = int(barrier == "fsync") % step
    assert [*problems(calls, ends, kind, ram_path / "boot", RANDOM_STATES, first, step)] == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("skip", ["sync", "sync_dir"])
def test_a_sync_that_is_left_out_is_noticed(kind, skip, monkeypatch, ram_path) -> None:
    """The test above goes red without the syncs of files, and without those of directories."""
    monkeypatch.setattr(local_storage, "filesystem_sync_reports_errors", lambda: False)
    (ram_path / "first").mkdir()
    left_out = ("sync", "sync_data") if skip == "sync" else (skip,)
    calls, ends = record(ram_path / "first", kind, left_out)
    assert next(problems(calls, ends, kind, ram_path / "boot", 0), None) is not None
