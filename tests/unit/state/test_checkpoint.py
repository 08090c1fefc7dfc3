"""Traces inside real checkpoints: drafts take runs, manifests give them back."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.checkpoint import open_store, read_store, verify_store
from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError
from holdfast.format.topology import Part, topology
from holdfast.ids import SeededIds
from holdfast.state import (
    RunSource,
    RunTarget,
    SmallState,
    entry_of,
    info_of,
    plan_full_compaction,
    put_trace,
    run_compaction,
    runs_of,
)
from holdfast.storage.local.storage import LocalStorage
from tests.helpers.state_world import World

PARTS = topology(
    Part(name="op", kind="operator", what="aggregate", stateful=True),
    Part(name="marks", kind="operator", what="window", stateful=True),
)


class Mark(msgspec.Struct):
    watermark_us: int


MARK = SmallState(Mark, name="mark")


class Stored(World):
    """A world whose run list lives in the manifests of a store."""

    def begin(self, store):
        self.store = store
        self.source = RunSource(self.storage, pipeline="pipe")
        self.draft = None

    def target(self, partition, partitions):
        return RunTarget(
            checkpoint=self.draft.checkpoint, operator="op", partition=partition,
            partitions=partitions, attempt=self.ids.token(), epoch=self.draft.epoch,
            base=self.draft.parent, pipeline="pipe",
        )  # fmt: skip

    def commit(self, rows, partitions, *, compact=False):
        with self.store.draft() as self.draft:
            self.step(rows, partitions)
            if compact:
                for partition in range(partitions):
                    plan = plan_full_compaction(self.runs, partition, partitions)
                    if plan:
                        target = self.target(partition, partitions)
                        self.adopt(
                            run_compaction(plan, self.storage, self.source, self.schema, target)
                        )
            self.runs = put_trace(
                self.draft, "op", self.schema.kind, self.runs, partitions=partitions
            )
            self.draft.put_small("marks", MARK.encode(Mark(self.draft.epoch)))
            summary = self.store.commit(self.draft)
        return summary.checkpoint


@pytest.mark.parametrize("kind", ["latest", "bag"])
def test_a_trace_survives_restarts_rescales_and_going_back(kind, tmp_path):
    """Runs listed by one process are found by the next, at any checkpoint and partition count."""
    storage, ids = LocalStorage(tmp_path), SeededIds(5)
    world = Stored(kind, ["string", "float64"], "list", seed=8, storage=storage)
    points = {}
    for number, partitions in enumerate((2, 2, 5, 1, 3, 3)):
        with open_store(storage, "pipe", topology=PARTS, ids=ids) as store:
            world.begin(store)
            manifest = store.current
            world.runs = list(runs_of(manifest, "op")) if manifest else []
            world.check_whole()
            checkpoint = world.commit(world.make_rows(60), partitions, compact=number == 3)
            store.pin(f"p{number}", checkpoint)
            points[checkpoint] = dict(world.model)
    with open_store(storage, "pipe", topology=PARTS, ids=ids) as store:
        for checkpoint, model in points.items():
            manifest = store.reader.manifest(checkpoint)
            world.runs, world.model = list(runs_of(manifest, "op")), model
            world.check_whole()
            small = store.reader.small_state(manifest, "marks")
            assert MARK.decode(small, operator="marks") == Mark(manifest.epoch)
    report = verify_store(read_store(storage, "pipe"), deep=True)
    assert report.ok, report


def test_a_merge_frees_the_runs_that_it_replaced(tmp_path):
    """After a full compaction the manifest lists one run for each partition and gc takes the rest."""
    storage = LocalStorage(tmp_path)
    world = Stored("latest", ["int64"], "int64", seed=8, storage=storage)
    with open_store(storage, "pipe", topology=PARTS, ids=SeededIds(5)) as store:
        world.begin(store)
        for _ in range(4):
            world.commit(world.make_rows(40), 2)
        old = {run.path for run in world.runs}
        for compact in (True, False, False, False):
            world.commit(world.make_rows(40), 2, compact=compact)
        listed = {file.path for file in store.current.files_of("op")}
        assert not listed & old
        store.gc()
    left = {entry.path.removeprefix("pipe/") for entry in storage.list("pipe/checkpoints")}
    assert listed <= left
    assert len(left & old) < len(old)
    world.check_whole()


def test_entries_and_runs_are_the_same_facts(tmp_path):
    """A run becomes an entry and comes back unchanged; a lossy entry is refused by path."""
    world = World("bag", ["int64"], "int64", seed=8, timed=True)
    for _ in range(2):
        world.step(world.make_rows(40), 2)
    snapshot, delta = world.runs[0], world.runs[-1]
    assert info_of(entry_of(snapshot), "bag") == snapshot
    with pytest.raises(InvalidInputError) as caught:
        entry_of(delta)
    assert caught.value.kind == "delta_without_base"
    entry = entry_of(snapshot)
    for change in ({"vnode_low": None}, {"epoch_high": None}, {"rows": -1}, {"vnode_high": 999}):
        with pytest.raises(CorruptionError, match=snapshot.path):
            info_of(msgspec.structs.replace(entry, **change), "bag")


def test_foreign_runs_and_unknown_operators_are_refused(tmp_path):
    """A run of another operator cannot be listed, and an operator without a trace is not found."""
    storage = LocalStorage(tmp_path)
    world = Stored("latest", ["int64"], "int64", seed=8, storage=storage)
    with open_store(storage, "pipe", topology=PARTS, ids=SeededIds(5)) as store:
        world.begin(store)
        world.commit(world.make_rows(10), 1)
        with store.draft() as draft, pytest.raises(InvalidInputError, match="another trace"):
            put_trace(draft, "marks", world.schema.kind, world.runs, partitions=1)
        for name in ("marks", "nope"):
            with pytest.raises(NotFoundError, match=name):
                runs_of(store.current, name)
