"""One grammar for naming a checkpoint, on the command line and in Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast.checkpoint import recovery_plan
from holdfast.checkpoint.reference import find_checkpoint
from holdfast.checkpoint.replication.fork import fork_pipeline
from holdfast.clock import SystemClock
from holdfast.errors import InvalidInputError, NotFoundError


def test_epochs_times_and_ids_may_be_text_numbers_or_moments(world):
    """`0`, "0", "epoch:0", an id, a time and "ago:0s" mean what they mean in `--at`."""
    reader, now = world.reader, SystemClock().wall_us()
    first, last = world.ids[0], world.ids[-1]
    moment = datetime.now(UTC) + timedelta(seconds=1)
    for ref in (0, "0", "epoch:0", first):
        assert find_checkpoint(reader, ref, now).checkpoint == first
    for ref in ("latest", "ago:0s", moment, moment.isoformat(), f"time:{moment.isoformat()}", 3):
        assert find_checkpoint(reader, ref, now + 1_000_000).checkpoint == last


@pytest.mark.parametrize("ref", [None, 1.5, True, b"0", ["0"]])
def test_what_names_nothing_is_refused(world, ref):
    """Another type is wrong input, with a remedy; an unknown epoch is not found."""
    with pytest.raises(InvalidInputError):
        find_checkpoint(world.reader, ref, 0)
    with pytest.raises(NotFoundError):
        find_checkpoint(world.reader, 99, 0)


def test_a_label_wins_over_an_epoch_and_over_a_time(world):
    """A savepoint called `2` or `2026-01-01` is what its name says; a prefix asks for the other."""
    with world.open() as store:
        store.pin("2", world.ids[0])
        store.pin("2026-01-01", world.ids[1])
    reader, now = world.reader, SystemClock().wall_us()
    assert find_checkpoint(reader, 2, now).checkpoint == world.ids[0]
    assert find_checkpoint(reader, "epoch:2", now).checkpoint == world.ids[2]
    assert find_checkpoint(reader, "2026-01-01", now).checkpoint == world.ids[1]
    with pytest.raises(NotFoundError):
        find_checkpoint(reader, "time:2026-01-01", now)


def test_a_time_without_a_zone_is_utc(world):
    """The same instant in three spellings; `ago:` takes every duration."""
    reader = world.reader
    created = {entry.epoch: entry.created_us for entry in reader.list()}
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=created[1])
    later = moment.astimezone(timezone(timedelta(hours=5)))
    for ref in (moment, moment.replace(tzinfo=None), later, later.isoformat()):
        assert find_checkpoint(reader, ref, 0).epoch == 1
    now = created[1] + 5_400_000_000
    for ago in ("ago:90m", "ago:90 minutes", "ago:1h30m"):
        assert find_checkpoint(reader, ago, now).epoch == 1
    with pytest.raises(InvalidInputError):
        find_checkpoint(reader, "ago:soon", now)


def test_the_library_takes_the_same_names(world):
    """Readers, savepoints, recovery and forks: an epoch is a number or text, a time is a time."""
    reader = world.reader
    assert reader.manifest(0).checkpoint == reader.manifest("0").checkpoint
    assert reader.resolve("ago:0s").checkpoint == world.ids[-1]
    with world.open() as store:
        assert store.pin("first", 0).checkpoint == world.ids[0]
    plan = recovery_plan(world.storage, "orders", resume=0)
    assert plan.chosen.epoch == 0
    assert {each.verdict for each in plan.candidates[:-1]} == {"newer than asked for"}
    made = fork_pipeline(world.storage, "orders", 1, "branch")
    assert made.source.checkpoint == world.ids[1]
