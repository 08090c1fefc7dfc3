"""A store under everything that can happen to it agrees with a model of plain dictionaries."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.checkpoint import read_store, rebuild_catalog
from holdfast.errors import CorruptionError, FencedError, NotFoundError, RefusedError
from holdfast.storage import MemoryStorage
from holdfast.testing import Model, SimulatedCrash, crash_at
from tests.helpers.effort import examples
from tests.helpers.scenes import PIPELINE, SETTINGS, World, assert_verified, told

RETAIN = 2
AGES_MS = st.sampled_from([0, 400])
STORE = msgspec.structs.replace(SETTINGS, retain=RETAIN, base_every_min=3, exclusive=False)
# Whether the checkpoint is committed when the process dies there.
COMMIT_POINTS = {
    "commit.before_manifest": False,
    "commit.after_manifest": False,
    "commit.after_barrier": False,
    "commit.after_record": True,
    "commit.after_hint": True,
}
GC_POINTS = {"gc.before_record": False, "gc.after_record": True, "gc.after_first_delete": True}
LABELS = st.sampled_from(["gold", "silver"])


class StoreMachine(RuleBasedStateMachine):
    """Drives a store and its model side by side."""

    @initialize(age_ms=AGES_MS)
    def begin(self, age_ms):
        self.model = Model()
        self.age_us = age_ms * 1_000
        self.settings = msgspec.structs.replace(STORE, retain_age_ms=age_ms)
        self.world = World(MemoryStorage(), settings=self.settings)
        self.hint = False
        self.world.open()

    # Working

    def _commit(self, sink):
        lineage = self.world.lineage()
        epoch = self.world.store.epoch_next
        self.world.commit(sink=sink)
        self._committed(epoch, lineage, sink)

    def _committed(self, epoch, lineage, sink):
        self.model.commit(
            epoch,
            (*lineage, epoch),
            sinks=["out"] if sink else [],
            created_us=self.world.clock.wall_us(),
        )
        self.hint = True

    @rule(sink=st.booleans())
    def commit(self, sink):
        self._commit(sink)

    @precondition(lambda self: self.model.pending())
    @rule(data=st.data(), status=st.sampled_from(["committed", "committed", "failed"]))
    def outcome(self, data, status):
        epoch, sink = data.draw(st.sampled_from(self.model.pending()))
        self.world.store.record_outcome(f"epoch:{epoch}", sink, status)
        self.model.outcome(epoch, sink, status)

    @precondition(lambda self: self.model.live)
    @rule(label=LABELS, data=st.data())
    def pin(self, label, data):
        epoch = data.draw(st.sampled_from([*self.model.live]))
        if self.model.pins.get(label, epoch) != epoch:
            with pytest.raises(Exception, match="label is taken"):
                self.world.store.pin(label, f"epoch:{epoch}")
            return
        self.world.store.pin(label, f"epoch:{epoch}")
        self.model.pin(label, epoch)

    @rule(label=LABELS)
    def unpin(self, label):
        if label not in self.model.pins:
            with pytest.raises(NotFoundError):
                self.world.store.unpin(label)
            return
        self.world.store.unpin(label)
        self.model.unpin(label)

    # Letting go

    def _retained(self):
        now = self.world.clock.wall_us()
        return self.model.retain(RETAIN, age_us=self.age_us, now_us=now)

    @rule(full=st.booleans())
    def retain(self, full):
        report = self.world.store.gc() if full else self.world.store.retain()
        assert report.error is None
        self._retained()

    @rule()
    def gc_dry_run(self):
        before = dict(self.world.storage._objects)
        report = self.world.store.gc(dry_run=True)
        assert self.world.storage._objects == before
        epochs = {entry.checkpoint: entry.epoch for entry in self.world.store.list()}
        kept = self.model.keeps(RETAIN, age_us=self.age_us, now_us=self.world.clock.wall_us())
        assert {epochs[checkpoint] for checkpoint in report.dropped} == set(self.model.live) - kept

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def delete(self, data):
        epoch = data.draw(st.sampled_from([*self.model.live]))
        if not self.model.deletable(epoch):
            with pytest.raises(RefusedError):
                self.world.store.delete(f"epoch:{epoch}")
            return
        assert self.world.store.delete(f"epoch:{epoch}").error is None
        self.model.drop([epoch])

    @rule()
    def compact(self):
        self.world.store.compact()

    # Dying and taking over

    def _reopen(self):
        self.world = World(self.world.storage, settings=self.settings, clock=self.world.clock)
        self.world.open()
        self.model.reopen()
        assert self.world.store.cleanup.error is None

    @rule()
    def reopen(self):
        self._reopen()

    @rule(point=st.sampled_from(sorted(COMMIT_POINTS)), sink=st.booleans())
    def crash_in_commit(self, point, sink):
        lineage, epoch = self.world.lineage(), self.world.store.epoch_next
        with pytest.raises(SimulatedCrash), crash_at(point):
            self.world.commit(sink=sink)
        if COMMIT_POINTS[point]:
            self._committed(epoch, lineage, sink)
        self._reopen()

    @rule(point=st.sampled_from(sorted(GC_POINTS)))
    def crash_in_gc(self, point):
        try:
            with crash_at(point):
                assert self.world.store.gc().error is None
        except SimulatedCrash:
            if GC_POINTS[point]:
                self._retained()
        else:
            self._retained()
        self._reopen()

    @rule()
    def second_writer_takes_over(self):
        old = self.world
        self._reopen()
        with pytest.raises(FencedError):
            old.commit()
        with pytest.raises(FencedError):
            old.store.retain()
        # A fenced writer deletes nothing: should the catalog be lost before the next opening, a
        # rebuild may list what it has left behind.
        self._reopen()

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def go_back(self, data):
        epoch = data.draw(st.sampled_from([*self.model.live]))
        self.world = World(self.world.storage, settings=self.settings, clock=self.world.clock)
        self.world.open(resume=f"epoch:{epoch}", accept_duplicates=True)
        self.model.resume(epoch)

    # Damage

    @precondition(lambda self: self.model.current is not None)
    @rule(data=st.data())
    def corrupt_a_file_of_the_newest(self, data):
        newest = next(e for e in self.world.store.list() if e.epoch == self.model.current)
        prefix = f"{PIPELINE}/checkpoints/{newest.checkpoint}/"
        storage = self.world.storage
        path = data.draw(st.sampled_from([e.path for e in storage.list(prefix)]))
        whole = storage.get(path)
        position = data.draw(st.integers(0, len(whole) - 1))
        damaged = bytearray(whole)
        damaged[position] ^= 1 << data.draw(st.integers(0, 7))
        hurt = self._needing(path)
        before = dict(storage._objects)
        storage.put(path, bytes(damaged))
        self.world = World(storage, settings=self.settings, clock=self.world.clock)
        if self.model.reopen(hurt) is not None:
            self.world.open()
            storage.put(path, whole)
            return
        with pytest.raises(CorruptionError, match="no checkpoint is intact"):
            self.world.open()
        assert storage._objects == {**before, path: bytes(damaged)}
        storage.put(path, whole)
        self._reopen()

    def _needing(self, path):
        """Epochs of the checkpoints that need a file."""
        reader = self.world.store.reader
        found = set()
        for entry in self.world.store.list():
            files = {reader.directory.file(file) for file in reader.manifest(entry).files}
            if path in files or path.endswith(f"/{entry.checkpoint}/manifest.json"):
                found.add(entry.epoch)
        return found

    @rule(garbage=st.none() | st.binary(max_size=8))
    def lose_the_pointer(self, garbage):
        path = f"{PIPELINE}/_latest"
        self.world.storage.delete(path)
        self.hint = False
        if garbage is not None and self.model.live:
            self.world.storage.put(path, garbage)

    @precondition(lambda self: self.model.live and self.hint)
    @rule(header_too=st.booleans())
    def lose_the_catalog(self, header_too):
        storage = self.world.storage
        for entry in [*storage.list(f"{PIPELINE}/catalog")]:
            storage.delete(entry.path)
        if header_too:
            storage.delete(f"{PIPELINE}/holdfast.json")
        before = dict(storage._objects)
        old = self.world
        self.world = World(storage, settings=self.settings, clock=self.world.clock)
        with pytest.raises(CorruptionError) as caught:
            self.world.open()
        assert caught.value.kind == ("header_lost" if header_too else "catalog_lost")
        assert storage._objects == before
        rebuild_catalog(storage, PIPELINE, clock=self.world.clock)
        self.model.rebuilt()
        with pytest.raises(FencedError):
            old.commit()
        self._reopen()

    # Time

    @rule(ms=st.integers(1, 1_000))
    def time_passes(self, ms):
        self.world.clock.advance_ms(ms)

    @rule(ms=st.integers(-5_000, 5_000))
    def clock_is_stepped(self, ms):
        self.world.clock.step_wall_ms(ms)

    # Agreement

    @invariant()
    def agrees_with_the_model(self):
        if not hasattr(self, "world"):
            return
        reader = read_store(self.world.storage, PIPELINE)
        state, outcomes = reader.catalog(), reader.outcomes()
        assert state.damage == ()
        live = {
            entry.epoch: (
                told(reader, entry),
                {sink.name: outcomes.status(entry.checkpoint, sink.name) for sink in entry.sinks},
                entry.abandoned,
            )
            for entry in state.live
        }
        epochs = {entry.checkpoint: entry.epoch for entry in state.live}
        pins = {pin.label: epochs.get(pin.checkpoint) for pin in reader.pins()}
        assert {"live": live, "pins": pins} == self.model.view()
        store = self.world.store
        assert [entry.epoch for entry in store.list()] == [*reversed(self.model.live)]
        assert (store.current.epoch if store.current else None) == self.model.current
        assert store.epoch_next > max(self.model.epochs, default=-1)
        assert [(token.epoch, token.sink) for token in store.pending()] == self.model.pending()

    def teardown(self):
        if hasattr(self, "world") and self.world.store is not None:
            self._commit(sink=True)
            assert_verified(self.world.storage)


def test_store_agrees_with_the_model():
    """Whatever happens in whatever order, a store answers what the model answers."""
    run_state_machine_as_test(StoreMachine, settings=settings(examples(30), stateful_step_count=30))
