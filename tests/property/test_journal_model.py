"""The journal against a plain list: whatever is done to it, it answers as the list does."""

import shutil
import tempfile
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import ManualClock
from holdfast.errors import ConflictError
from holdfast.journal import (
    Durability,
    Event,
    JournalReader,
    JournalSettings,
    JournalWriter,
    Query,
    SeededEventIds,
    plan_splits,
    read_split,
    verify_journal,
)
from tests.helpers.effort import examples

profile = examples(25)

texts = st.one_of(
    st.sampled_from(["", "a", "b", "order-1", "é\u0000"]),
    st.text(max_size=5).filter(lambda t: t.isprintable()),
)
keys = st.integers(1, 60).map(lambda n: uuid.UUID(int=n))
payloads = st.sampled_from([b"", b"x", b"\x00\xff" * 40])
batches = st.lists(
    st.tuples(texts, texts, texts, st.none() | keys, st.none() | keys, payloads, st.integers(-5, 5)),
    min_size=1, max_size=6,
)  # fmt: skip
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), batches, st.booleans()),
        st.tuples(st.just("repeat"), st.integers(0, 20)),
        st.tuples(st.just("reopen"), st.sampled_from(["clean", "no_checkpoint", "bad_checkpoint", "no_mark"])),
        st.tuples(st.just("truncate"), st.integers(0, 40)),
        st.tuples(st.just("compact")),
        st.tuples(st.just("checkpoint")),
    ),
    min_size=1, max_size=14,
)  # fmt: skip


class Model:
    """What the journal should hold: a list of batches, and a base."""

    def __init__(self, root):
        self.root = root
        self.batches = []
        self.base = 0
        self.writer = self.open()

    def open(self):
        return JournalWriter(
            self.root, JournalSettings(segment_bytes=1500, durability=Durability.BATCH),
            clock=ManualClock(), ids=SeededEventIds(len(self.batches)),
        )  # fmt: skip

    @property
    def events(self):
        return [event for batch in self.batches for event in batch]

    def append(self, rows, with_ids):
        start = len(self.events)
        batch = [
            Event(
                entity=entity, scope=scope, kind=kind, correlation=correlation, causation=causation, payload=payload,
                wall_us=wall, id=uuid.UUID(int=10_000 + start + n) if with_ids else None,
            )
            for n, (entity, scope, kind, correlation, causation, payload, wall) in enumerate(rows)
        ]  # fmt: skip
        receipt = self.writer.append(batch)
        assert (receipt.first_sequence, receipt.count, receipt.duplicate) == (
            start,
            len(batch),
            False,
        )
        self.batches.append(batch)

    def repeat(self, which):
        if not self.batches:
            return
        number = which % len(self.batches)
        batch = self.batches[number]
        start = sum(len(b) for b in self.batches[:number])
        if batch[0].id is None or start < self.base:
            return
        receipt = self.writer.append(batch)
        assert (receipt.first_sequence, receipt.duplicate) == (start, True)
        if len(batch) > 1:
            with pytest.raises(ConflictError):
                self.writer.append(batch[1:])

    def reopen(self, how):
        self.writer.close()
        if how == "no_checkpoint":
            (self.root / "index.ckpt").unlink(missing_ok=True)
        elif how == "bad_checkpoint":
            (self.root / "index.ckpt").write_bytes(b"nonsense" * 9)
        elif how == "no_mark":
            (self.root / "durable.mark").unlink()
        self.check(expected={"checkpoint_invalid"} if how == "bad_checkpoint" else set())
        self.writer = self.open()

    def compact(self):
        self.writer.compact(target_bytes=6000)

    def truncate(self, sequence):
        sequence = min(sequence, len(self.events))
        report = self.writer.truncate_before(sequence)
        assert self.base <= report.base_sequence <= max(sequence, self.base)
        self.base = report.base_sequence

    def check(self, expected=frozenset()):
        with JournalReader(self.root) as reader:
            view = reader.view()
            assert (view.base_sequence, view.visible) == (self.base, len(self.events))
            self.compare(view)
            start, end = view.position(view.base_sequence), view.position()
            slices = plan_splits(self.root, view, start, end, split_bytes=700)
            found = [
                s
                for one in slices
                for b in read_split(one)
                for s in b.column("sequence").to_pylist()
            ]
            assert found == list(range(self.base, len(self.events)))
        report = verify_journal(self.root, deep=True)
        assert {f.kind for f in report.findings} == expected, report.findings

    def compare(self, view):
        kept = list(enumerate(self.events))[self.base :]
        found = view.query(Query()).events()
        for event, (sequence, wanted) in zip(found, kept, strict=True):
            assert event.sequence == sequence
            assert (event.entity, event.scope, event.kind) == (
                wanted.entity,
                wanted.scope,
                wanted.kind,
            )
            assert (event.correlation, event.causation) == (wanted.correlation, wanted.causation)
            assert (event.payload, event.wall_us) == (wanted.payload, wanted.wall_us)
            assert wanted.id in (None, event.id)
        for name in ("entity", "scope", "kind", "correlation"):
            for value in {getattr(e, name) for _, e in kept[:6]} - {None}:
                rows = [e.sequence for e in view.query(Query(**{name: value})).events()]
                assert rows == [n for n, e in kept if getattr(e, name) == value]
        rows = [e.sequence for e in view.query(Query(from_wall_us=-1, to_wall_us=3)).events()]
        assert rows == [n for n, e in kept if -1 <= e.wall_us < 3]
        ids = [e.id for e in found]
        assert view.find(ids) == {one: self.base + n for n, one in enumerate(ids)}


@profile
@given(steps)
def test_the_journal_answers_as_a_list_does(steps):
    """Appends, repeats, reopenings by every path, truncation and compaction in any order."""
    root = Path(tempfile.mkdtemp()) / "journal"
    try:
        model = Model(root)
        try:
            for name, *args in steps:
                getattr(model, name)(*args) if hasattr(model, name) else getattr(
                    model.writer, name
                )(*args)
            model.compare(model.writer.view())
        finally:
            model.writer.close()
        model.check()
    finally:
        shutil.rmtree(root.parent)
