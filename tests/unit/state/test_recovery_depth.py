"""Recovery above its limit: what is not hashed is said, and found when it is read."""

from __future__ import annotations

import pytest

from holdfast import Settings
from holdfast.checkpoint import open_store, recovery_plan
from holdfast.errors import CorruptionError
from holdfast.ids import SeededIds
from holdfast.state import plan_full_compaction, run_compaction, runs_of
from holdfast.storage.local.storage import LocalStorage
from tests.unit.state.test_checkpoint import PARTS, Stored

FLIPS = 16


def stored(tmp_path, kind, commits=4):
    """A store with runs of several epochs; the settings put small state into a pack."""
    storage = LocalStorage(tmp_path)
    world = Stored(kind, ["string", "int64"], "list", seed=3, storage=storage)
    settings = Settings(retain=9, inline_bytes_max=0)
    with open_store(storage, "pipe", topology=PARTS, ids=SeededIds(5), settings=settings) as store:
        world.begin(store)
        world.runs = []
        for _ in range(commits):
            world.commit(world.make_rows(80), 2)
        files = {
            kind: [tmp_path / "pipe" / e.path for e in store.current.files if e.kind in kinds]
            for kind, kinds in (("run", ("snapshot", "delta")), ("other", ("pack",)))
        }
    return world, files


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1
    path.write_bytes(bytes(data))


def small(limit):
    return Settings(retain=9, inline_bytes_max=0, recovery_deep_bytes_max=limit)


@pytest.mark.parametrize("kind", ["latest", "bag"])
def test_above_the_limit_the_plan_says_what_was_hashed(kind, tmp_path):
    """Every file is counted as hashed or as compared by size, and the text says which."""
    _, files = stored(tmp_path, kind)
    plan = recovery_plan(tmp_path, "pipe", settings=small(0))
    assert plan.depth == "shallow"
    assert plan.coverage.files == len(files["other"]) > 0
    assert plan.coverage.unhashed_files == len(files["run"])
    assert plan.coverage.unhashed_bytes == sum(p.stat().st_size for p in files["run"])
    assert "when it is read" in str(plan)
    newest = files["run"][-1].stat().st_size
    some = recovery_plan(tmp_path, "pipe", settings=small(newest + 200))
    assert some.coverage.unhashed_files < plan.coverage.unhashed_files
    whole = recovery_plan(tmp_path, "pipe")
    assert whole.depth == "deep"
    assert whole.coverage.unhashed_files == 0
    assert "when it is read" not in str(whole)


def test_what_no_read_checks_is_hashed_at_any_size(tmp_path):
    """A flipped bit in a pack is found although the limit is zero."""
    _, files = stored(tmp_path, "latest")
    flip(files["other"][-1], 3)
    plan = recovery_plan(tmp_path, "pipe", settings=small(0))
    assert plan.damaged
    assert plan.chosen.epoch < plan.candidates[0].summary.epoch


def test_the_newest_runs_are_hashed_up_to_the_limit(tmp_path):
    """What a crash is most likely to have hurt is looked at first."""
    _, files = stored(tmp_path, "latest")
    newest = files["run"][-1]
    flip(newest, 100)
    limit = sum(p.stat().st_size for p in files["other"]) + newest.stat().st_size
    assert recovery_plan(tmp_path, "pipe", settings=small(limit)).damaged
    assert not recovery_plan(tmp_path, "pipe", settings=small(0)).damaged


def answers(world, runs):
    """Every way in which an epoch reads a run: lookups, scans, merges."""
    world.runs = runs
    world.check_whole()
    for partition in range(2):
        plan = plan_full_compaction(runs, partition, 2)
        if plan:
            run_compaction(
                plan, world.storage, world.source, world.schema, world.target(partition, 2)
            )


@pytest.mark.parametrize("kind", ["latest", "bag"])
def test_a_flipped_bit_that_was_not_hashed_is_found_when_it_is_read(kind, tmp_path):
    """Reading gives the right answer or a typed error with the way back; a deep start goes back."""
    world, files = stored(tmp_path, kind)
    oldest = files["run"][0]
    original = oldest.read_bytes()
    noticed = 0
    for number in range(FLIPS):
        oldest.write_bytes(original)
        flip(oldest, number * len(original) // FLIPS + 7)
        storage = LocalStorage(tmp_path)
        with open_store(
            storage, "pipe", topology=PARTS, settings=small(0), clean_up=False
        ) as store:
            assert store.recovery.coverage.unhashed_files
            world.begin(store)
            world.storage = storage
            runs = list(runs_of(store.current, "op"))
            with store.draft() as world.draft:
                try:
                    answers(world, runs)
                except CorruptionError as error:
                    noticed += 1
                    assert 'recovery_verify="deep"' in (error.remedy or ""), error
                world.draft.abort()
    assert noticed > FLIPS // 2
    oldest.write_bytes(original)
    flip(files["run"][-1], 100)
    deep = recovery_plan(tmp_path, "pipe", settings=Settings(recovery_verify="deep"))
    assert deep.damaged
    assert deep.chosen.epoch < deep.candidates[0].summary.epoch
