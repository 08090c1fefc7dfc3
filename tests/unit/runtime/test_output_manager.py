"""Settling outputs on a real store, without Spark: order, retries, rebuilds, quarantine."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import Settings
from holdfast.checkpoint import Part, open_store, topology
from holdfast.clock import ManualClock
from holdfast.connectors.base import StagedFile, token_text
from holdfast.connectors.function import Function
from holdfast.connectors.parquet.sink import Parquet
from holdfast.errors import HoldfastError, RefusedError, StorageError
from holdfast.format.position import CounterPosition
from holdfast.runtime.output_manager import Outputs
from holdfast.runtime.outputs import OWNED, history_of
from holdfast.runtime.quarantine import Quarantine
from holdfast.storage.open import StorageLocation, storage_of
from holdfast.testing import SimulatedCrash, crash_at

SHAPE = topology(
    Part(name="src", kind="source", what="counter"),
    Part(name="log", kind="sink", what="parquet", inputs=["src"]),
    Part(name="now", kind="sink", what="parquet", inputs=["src"]),
    Part(name="fn", kind="sink", what="function", inputs=["src"]),
)


class World:
    """A store, three sinks, and epochs that stage one row for each."""

    def __init__(self, home, calls=None) -> None:
        self.home, self.clock = home, ManualClock()
        self.place = StorageLocation(str(home / "cp"))
        self.calls = calls if calls is not None else []
        self.sinks = {
            "log": Parquet(str(home / "log")),
            "now": Parquet(str(home / "now"), mode="upsert"),
            "fn": Function(lambda rows, epoch, key: self.calls.append((epoch, rows))),
        }
        self.open()

    def open(self, **options) -> None:
        if hasattr(self, "store"):
            self.store.close()
        settings = Settings(retain=3)
        self.store = open_store(
            self.place.url, "p", topology=SHAPE, settings=settings, clock=self.clock, **options
        )
        self.writers = {
            name: sink.open(name, "p", self.place, FakeSpark()) for name, sink in self.sinks.items()
        }

    def start(self, wishes=None, new=frozenset()) -> Outputs:
        outputs = Outputs(self.writers, wishes or {})
        store = self.store
        history = history_of(
            store.lineage, "p", store.current, store.list(), store.outcomes, int(store.epoch_next)
        )
        outputs.look(history, store.reader, store.list(), new, store.pending())
        outputs.act(store)
        store.publish_pending(outputs.handlers)
        return outputs

    def epoch(self, sinks=("log", "now", "fn")) -> None:
        """Commit one checkpoint with a staged row for each sink."""
        checkpoint = self.store.reserve()
        draft = self.store.draft(checkpoint=checkpoint)
        draft.set_source("src", CounterPosition(partitions={"0": int(draft.epoch) + 1}))
        draft.set_properties({**draft.properties, OWNED: "1"})
        for name in sinks:
            place, directory = self.writers[name].staging(checkpoint)
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"x": [int(draft.epoch)]}), sink)
            path = f"{directory}/part-0-{checkpoint}.parquet"
            storage_of(place).put(path, sink.getvalue().to_pybytes())
            draft.stage_sink(
                name, token_text(directory, [StagedFile(name, path, 1, "", 1)]), replay="retracts"
            )
        self.store.commit(draft)

    def statuses(self) -> dict[str, str]:
        """Of the newest checkpoint, what became of each token."""
        newest = self.store.list()[0]
        return {s.name: self.store.outcomes.status(newest.checkpoint, s.name) for s in newest.sinks}

    def log(self) -> list[int]:
        files = sorted((self.home / "log").glob("hf_epoch=*/*.parquet"))
        return sorted(x for file in files for x in pq.read_table(file)["x"].to_pylist())


class FakeSpark:
    """Reads Parquet as a list of values."""

    @property
    def read(self):
        return self

    def parquet(self, *files):
        return [x for file in files for x in pq.ParquetFile(file).read()["x"].to_pylist()]


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def test_rows_are_published_then_recorded_then_settled(world) -> None:
    """A crash between any two leaves a record that is never ahead of the rows."""
    world.start()
    for point in ("output.after_rows", "output.after_record"):
        world.epoch()
        outputs = world.start()
        assert set(world.statuses().values()) == {"committed"}
        newest = world.store.current
        assert outputs.owners["log"].epoch == newest.epoch
        assert outputs.owners["log"].checkpoint == newest.checkpoint
        world.epoch()
        with crash_at(point), pytest.raises(SimulatedCrash):
            world.store.publish_pending(outputs.handlers)
        assert world.statuses()["log"] == "pending"
        record = world.sinks["log"].open("log", "p", None, None).inspect(None).owner
        behind = point == "output.after_rows"
        assert record.epoch == int(world.store.current.epoch) - behind
        world.open()
        world.start()
        assert set(world.statuses().values()) == {"committed"}
    assert world.log() == [*range(int(world.store.current.epoch) + 1)]


def test_what_can_pass_is_tried_again_and_other_sinks_do_not_wait(world, monkeypatch) -> None:
    """Three tries with growing pauses for what is retryable, one for what is not."""
    outputs = world.start()
    tries: list[int] = []

    def fail(error):
        def commit(token) -> None:
            tries.append(int(token.epoch))
            raise error

        return commit

    real = world.writers["log"].commit
    monkeypatch.setattr(world.writers["log"], "commit", fail(StorageError("busy", retryable=True)))
    world.epoch()
    before = world.clock.wall_us()
    with pytest.raises(StorageError) as caught:
        world.store.publish_pending(outputs.handlers)
    assert caught.value.kind == "sink_failed" and caught.value.facts["tries"] == 3
    assert world.clock.wall_us() - before >= 1_000_000
    assert world.statuses() == {"log": "failed", "now": "committed", "fn": "committed"}
    monkeypatch.setattr(world.writers["log"], "commit", fail(ValueError("bad row")))
    world.epoch()
    tries.clear()
    with pytest.raises(StorageError) as caught:
        world.store.publish_pending(outputs.handlers)
    assert tries == [0] and not caught.value.retryable
    assert "--set-aside" in caught.value.remedy and "bad row" in str(caught.value)
    monkeypatch.setattr(world.writers["log"], "commit", real)
    world.store.publish_pending(outputs.handlers)
    assert world.log() == [0, 1]


def test_failed_epochs_are_set_aside_by_name_and_published_once(world, monkeypatch) -> None:
    """A changelog and a function continue without them; the store is not held back by them."""
    outputs = world.start()
    broken = {"on": True}
    real = world.writers["log"].commit

    def commit(token) -> None:
        if broken["on"]:
            raise ValueError("cannot")
        real(token)

    monkeypatch.setattr(world.writers["log"], "commit", commit)
    world.epoch()
    with pytest.raises(StorageError):
        world.store.publish_pending(outputs.handlers)
    notes: list[str] = []
    quarantine = Quarantine(world.store, world.place, world.writers)
    quarantine.set_aside(["now"], notes)
    assert world.statuses()["log"] == "failed" and not notes
    quarantine.set_aside(["log"], notes)
    assert world.statuses()["log"] == "aborted" and notes
    reason = world.store.outcomes.by_token[(world.store.current.checkpoint, "log")][-1].reason
    assert ".quarantine/p/log/0" in reason
    broken["on"] = False
    for _ in range(5):
        world.epoch()
        world.store.publish_pending(outputs.handlers)
        world.store.retain()
    assert world.log() == [1, 2, 3, 4, 5]
    assert min(s.epoch for s in world.store.list()) == 3
    quarantine.redrive(["log"], outputs.since, notes)
    quarantine.redrive(["log"], outputs.since, notes)
    assert world.log() == [0, 1, 2, 3, 4, 5]
    assert sum("published late" in note for note in notes) == 1
    assert quarantine.entries("log") == []


def test_what_a_rebuild_or_a_restore_made_wrong_is_not_published_late(world, monkeypatch) -> None:
    """The rows of a rebuilt output are in it; a history that was left is not published."""
    outputs = world.start()
    world.epoch()
    world.store.publish_pending(outputs.handlers)
    monkeypatch.setattr(world.writers["log"], "commit", lambda _: 1 / 0)
    world.epoch()
    with pytest.raises(StorageError):
        world.store.publish_pending(outputs.handlers)
    quarantine = Quarantine(world.store, world.place, world.writers)
    quarantine.set_aside(["log"], [])
    with pytest.raises(RefusedError) as caught:
        monkeypatch.setattr(world.writers["now"], "commit", lambda _: 1 / 0)
        world.epoch()
        with pytest.raises(StorageError):
            world.store.publish_pending(outputs.handlers)
        quarantine.set_aside(["now"], [])
    assert caught.value.kind == "cannot_set_aside"
    notes: list[str] = []
    saved = [(home, entry) for home, entry in quarantine.entries("log")]
    assert quarantine._outdated(saved[0][1], 5) is not None
    world.open(resume="epoch:0")
    quarantine = Quarantine(world.store, world.place, world.writers)
    quarantine.redrive(["log"], {}, notes)
    assert "gone back" in notes[0] and world.log() == [0]


def test_a_rebuild_supersedes_what_waits_and_begins_again_after_a_crash(world) -> None:
    """Marked first; pending rows are in the rebuild; without rows the output is empty and whole."""
    world.start()
    world.epoch()
    world.epoch()
    world.open()
    with crash_at("output.after_mark"), pytest.raises(SimulatedCrash):
        world.start({"log": "adopt"})
    world.open()
    outputs = world.start()
    assert outputs.decisions["log"].action == "rebuild"
    assert {token.sink for token in world.store.pending()} == set()
    assert world.statuses()["log"] == "aborted" and world.log() == []
    world.epoch(["log"])
    world.store.publish_pending(outputs.handlers)
    assert world.log() == [2]
    record = outputs.owners["log"]
    assert (record.epoch, record.since, record.building) == (2, 2, False)
    world.open()
    outputs = world.start({"log": "adopt"})
    outputs.finish(world.store.current)
    assert world.log() == []
    world.open()
    assert world.start().decisions["log"].action == "continue"


def test_all_outputs_are_asked_before_one_is_touched(world) -> None:
    """A refusal of the last sink leaves the first as it was."""
    outputs = world.start()
    for _ in range(3):
        world.epoch()
        world.store.publish_pending(outputs.handlers)
    other = World(world.home / "other")
    other.start()
    theirs = (world.home / "other" / ".now.versions" / "_holdfast.json").read_bytes()
    (world.home / ".now.versions" / "_holdfast.json").write_bytes(theirs)
    world.open(resume="epoch:0")
    with pytest.raises(HoldfastError) as caught:
        world.start()
    assert caught.value.kind == "output_owned"
    assert world.log() == [0, 1, 2]
    world.start({"now": "keep"})
    assert world.log() == [0]


def test_a_store_that_came_without_its_staged_rows_rebuilds_its_outputs(world) -> None:
    """What waits and is nowhere is rebuilt; what was published before the crash is not."""
    outputs = world.start()
    world.epoch()
    with crash_at("output.after_rows"), pytest.raises(SimulatedCrash):
        world.store.publish_pending(outputs.handlers)
    for file in (world.home / "cp" / ".staging" / "p" / "now").rglob("*.parquet"):
        file.unlink()
    world.open()
    outputs = world.start()
    actions = {name: decision.action for name, decision in outputs.decisions.items()}
    assert actions == {"log": "continue", "now": "rebuild"}
    assert world.log() == [0]
