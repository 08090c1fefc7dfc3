"""The settings that are about a log, in a pipeline that reads a journal."""

from __future__ import annotations

import json

import pytest

import holdfast as hf
from holdfast.connectors.journal.source import JournalSourceReader
from holdfast.format.position import JournalPosition
from holdfast.journal import (
    Event,
    HoldStore,
    JournalFiles,
    JournalReader,
    JournalSettings,
    JournalWriter,
)
from holdfast.journal.format.layout import Layout
from holdfast.testing import SimulatedCrash, crash_at

SMALL = JournalSettings(segment_bytes=4_096)


def fill(path, start: int, stop: int) -> None:
    with JournalWriter(path, SMALL) as journal:
        for first in range(start, stop, 50):
            events = [
                Event(entity=f"e{n % 5}", kind="n", payload=json.dumps({"x": n}))
                for n in range(first, min(first + 50, stop))
            ]
            journal.append(events)


def totals(home, spark, *, store="cp", extra=None, **settings):
    chosen = hf.Settings(**{"epochs_max": 1, "log_bytes_min": 0, **settings})
    pipe = hf.Pipeline("p", store=home / store, spark=spark, partitions=1, settings=chosen)
    rows = pipe.source("in", hf.sources.Journal(home / "j", payload="x long", events_max=200))
    if extra is not None:
        rows = rows.select("entity", "x").union(pipe.source("more", extra))
    rows.group_by("entity").agg(n=hf.count(), s=hf.sum("x"), name="t")
    return pipe


def holds(home):
    from holdfast.clock import SystemClock

    return HoldStore(JournalFiles(), Layout(home / "j"), SystemClock()).all()


def checkpoints(pipe):
    """Oldest first."""
    reader = pipe.reader()
    found = [reader.manifest(summary) for summary in reader.list()]
    return sorted(found, key=lambda manifest: manifest.epoch)


def test_log_bytes_min_postpones_checkpoints_of_a_pipeline(spark, tmp_path) -> None:
    """The interval has passed, but the journal has not grown enough: epochs share a checkpoint."""
    fill(tmp_path / "j", 0, 1_000)
    with JournalReader(tmp_path / "j") as journal:
        whole = sum(s.end_offset - 128 for s in journal.view().segments)
    quick = {"epochs_max": None, "interval_ms": 1, "retain": 50}
    for store, least, count in (
        ("none", 0, 5), ("half", whole // 2, 2), ("all", whole * 2, 1)
    ):  # fmt: skip
        pipe = totals(tmp_path, spark, store=store, log_bytes_min=least, **quick)
        assert pipe.run().epochs == 5
        assert len(checkpoints(pipe)) == count, store
    # Rows of another source do not wait for the journal to grow.
    other = hf.sources.Generator({"entity": "'g'", "x": "id"}, rows=30, rows_per_epoch=10)
    pipe = totals(tmp_path, spark, store="mixed", extra=other, log_bytes_min=whole * 2, **quick)
    pipe.run()
    assert len(checkpoints(pipe)) == 5


def test_a_checkpoint_says_how_far_it_has_seen_the_log(spark, tmp_path) -> None:
    """`manifest.log` is the journal's position, and is none where there are two journals."""
    fill(tmp_path / "j", 0, 300)
    pipe = totals(tmp_path, spark)
    pipe.run()
    for manifest in checkpoints(pipe):
        assert isinstance(manifest.log, JournalPosition)
        assert manifest.log == manifest.source("in").position
    assert checkpoints(pipe)[-1].log.sequence == 300
    two = hf.Pipeline("two", store=tmp_path / "cp", spark=spark, partitions=1)
    for name in ("a", "b"):
        rows = two.source(name, hf.sources.Journal(tmp_path / "j", payload="x long"))
        rows.group_by("entity").agg(n=hf.count(), name=f"t{name}")
    two.run()
    assert checkpoints(two)[-1].log is None


def test_truncate_log_decides_where_the_hold_lies(spark, tmp_path) -> None:
    """On: at the oldest retained checkpoint. Off: at the base, so nothing is ever cut."""
    fill(tmp_path / "j", 0, 1_000)
    keeping = totals(tmp_path, spark, store="keep", truncate_log=False, retain=2)
    keeping.run()
    assert [hold.sequence for hold in holds(tmp_path).values()] == [0]
    with JournalWriter(tmp_path / "j", SMALL) as journal:
        assert journal.truncate_before(1_000).base_sequence == 0
    cutting = totals(tmp_path, spark, store="cut", retain=2)
    cutting.run()
    oldest = min(manifest.source("in").position.sequence for manifest in checkpoints(cutting))
    assert oldest > 0
    kept, moved = sorted(hold.sequence for hold in holds(tmp_path).values())
    assert kept == 0 < moved <= oldest
    # Two pipelines of one name in two stores: each has its own hold, the slower one counts.
    with JournalWriter(tmp_path / "j", SMALL) as journal:
        assert journal.truncate_before(1_000).base_sequence == 0
    # Turned on later, the hold moves with the next start, though there is nothing new to read.
    totals(tmp_path, spark, store="keep", retain=2).run()
    assert sorted(hold.sequence for hold in holds(tmp_path).values()) == sorted((moved, oldest))


def test_going_back_works_after_everything_was_cut_that_may_be(spark, tmp_path) -> None:
    """With `truncate_log` off, and for a savepoint with it on: the events are still there."""
    for name, options in (("off", {"truncate_log": False}), ("pinned", {})):
        home = tmp_path / name
        fill(home / "j", 0, 400)
        totals(home, spark, retain=2, **options).run()
        first = checkpoints(totals(home, spark))[0].checkpoint
        if name == "pinned":
            from holdfast.checkpoint import open_store

            topology = checkpoints(totals(home, spark))[0].topology
            with open_store(home / "cp", "p", topology=topology) as store:
                store.pin("before", first)
        fill(home / "j", 400, 1_000)
        totals(home, spark, retain=2, **options).run()
        with JournalWriter(home / "j", SMALL) as journal:
            journal.truncate_before(1_000)
        if name == "off":
            first = checkpoints(totals(home, spark))[0].checkpoint
        pipe = totals(home, spark, retain=2, **options)
        pipe.run(from_checkpoint=first, accept_duplicates=True)
        assert sum(row["n"] for row in pipe.view("t").to_arrow().to_pylist()) == 1_000


def test_a_source_is_told_only_of_durable_checkpoints(spark, tmp_path, monkeypatch) -> None:
    """When a source hears of a checkpoint, a reader of the store already finds it."""
    fill(tmp_path / "j", 0, 600)
    told, real = [], JournalSourceReader.committed

    def committed(self, manifest, floor):
        found = {m.checkpoint: m for m in checkpoints(totals(tmp_path, spark))}
        at = found[manifest.checkpoint].source("in").position.sequence
        told.append((at, self._at.sequence))
        real(self, manifest, floor)

    monkeypatch.setattr(JournalSourceReader, "committed", committed)
    totals(tmp_path, spark).run()
    assert [at for at, _ in told] == [200, 400, 600]


@pytest.mark.parametrize("point", ["commit.after_barrier", "epoch.after_draft"])
def test_a_hold_does_not_move_before_its_checkpoint_is_durable(spark, tmp_path, point) -> None:
    """A crash before the commit leaves the hold where the last durable checkpoints need it."""
    fill(tmp_path / "j", 0, 400)
    totals(tmp_path, spark, retain=2).run()
    before = holds(tmp_path)
    fill(tmp_path / "j", 400, 1_000)
    with pytest.raises(SimulatedCrash), crash_at(point):
        totals(tmp_path, spark, retain=2).run(takeover=True)
    assert holds(tmp_path) == before
