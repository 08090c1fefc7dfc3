"""Records that were lost at the end of the catalog: somebody remembers them, and is heard."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint import (
    open_store,
    read_store,
    rebuild_catalog,
    recovery_plan,
    verify_store,
)
from holdfast.errors import CorruptionError, HoldfastError, RefusedError
from holdfast.failpoints import failpoint_handler
from holdfast.storage import LocalStorage, MemoryStorage
from holdfast.testing import HookedStorage, SimulatedCrash
from tests.helpers.interleave import at_every_moment
from tests.helpers.paths import child_environment
from tests.helpers.scenes import PIPELINE, SETTINGS, TOPOLOGY, World, assert_verified, fill, told

LOST = "catalog_shrank"


def records(storage):
    return [entry.path for entry in storage.list(f"{PIPELINE}/catalog")]


def store_with(commits, *, sink=True, outcomes=False, replay="deduplicates", hint=True):
    """Commits, and a writer that is gone."""
    storage = MemoryStorage()
    world = World(storage)
    world.open()
    for _ in range(commits):
        with world.store.draft() as draft:
            fill(draft, world.value, world.lineage(), sink=sink, replay=replay)
            world.store.commit(draft)
        world.value += 1
        if outcomes:
            world.outcome()
    world.store.close()
    if not hint:
        storage.delete(f"{PIPELINE}/_latest")
    return storage


def lose(storage, count):
    """The newest records are gone."""
    for path in records(storage)[-count:]:
        storage.delete(path)


WITNESSES = {
    "the hint": {"lost": 1, "sink": False},
    "the hint, of several": {"lost": 3, "sink": False},
    "an outcome": {"lost": 1, "hint": False, "outcomes": True},
    "a manifest": {"lost": 2, "hint": False, "sink": False},
}


def case(lost, **options):
    storage = store_with(5, **options)
    before = read_store(storage, PIPELINE).list()
    lose(storage, lost)
    return storage, before


@pytest.mark.parametrize("witness", WITNESSES)
def test_the_plan_says_that_records_were_lost(witness):
    """Every witness is heard: the plan names the loss and the checkpoint that it was."""
    storage, before = case(**WITNESSES[witness])
    plan = recovery_plan(storage, PIPELINE)
    assert plan.damaged
    assert any("lost" in note for note in plan.notes), plan
    assert before[0].checkpoint in {entry.checkpoint for entry in plan.rescue}
    assert plan.epoch_next > before[0].epoch
    assert before[0].checkpoint in str(plan)
    report = verify_store(read_store(storage, PIPELINE))
    assert LOST in {finding.kind for finding in report.all_findings()}
    assert not report.ok


@pytest.mark.parametrize("clean_up", [True, False])
@pytest.mark.parametrize("witness", WITNESSES)
def test_a_lost_checkpoint_survives_opening_after_opening(witness, clean_up):
    """Its epoch is not used again, its files stay, and it can be gone back to by name."""
    storage, before = case(**WITNESSES[witness])
    newest = before[0]
    world = World(storage)
    world.open(clean_up=clean_up)
    assert world.store.epoch_next > newest.epoch
    assert world.store.current.epoch < newest.epoch
    world.commit()
    world.outcome()
    again = World(storage)
    again.open()
    again.store.gc()
    assert again.store.current.epoch > newest.epoch
    reader = read_store(storage, PIPELINE)
    found = reader.catalog().find(newest.checkpoint)
    assert found is not None
    assert found.abandoned
    assert told(reader, found) == (0, 1, 2, 3, 4)
    assert_verified(storage)
    back = World(storage)
    back.open(resume=newest.checkpoint)
    assert back.lineage() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("witness", WITNESSES)
def test_a_rebuild_brings_a_lost_checkpoint_back(witness):
    """It needs no force: what was lost is known to be lost."""
    storage, before = case(**WITNESSES[witness])
    rebuild_catalog(storage, PIPELINE)
    world = World(storage)
    world.open()
    assert world.store.current.checkpoint == before[0].checkpoint
    assert world.lineage() == [0, 1, 2, 3, 4]


def test_wherever_an_opening_dies_the_lost_checkpoint_is_still_there():
    """A crash between the open record and the one that lists it again loses nothing."""
    for stop in range(1, 200):
        storage, before = case(lost=1)
        count = 0

        def hook(moment, operation, path, stop=stop):
            nonlocal count
            if moment == "before" and operation in ("put_new", "put", "delete"):
                count += 1
                if count == stop:
                    raise SimulatedCrash(f"{operation} {path}", 1)

        world = World(HookedStorage(storage, hook))
        try:
            world.open()
            world.commit()
        except SimulatedCrash:
            died = True
        else:
            died = False
        again = World(storage)
        again.open()
        assert again.store.epoch_next > before[0].epoch
        found = read_store(storage, PIPELINE).catalog().find(before[0].checkpoint)
        assert found is not None, stop
        assert told(read_store(storage, PIPELINE), found) == (0, 1, 2, 3, 4)
        if not died:
            return
    pytest.fail("the opening never ran through undisturbed")


def test_a_sink_that_cannot_replay_refuses_to_go_back_over_a_loss():
    """What was published with the lost checkpoint would be published again."""
    storage = store_with(3, replay="none")
    lose(storage, 1)
    with pytest.raises(RefusedError) as caught:
        World(storage).open()
    assert caught.value.kind == "unsafe_fallback"


def test_the_only_commit_lost_is_no_fresh_start():
    """With nothing else to go back to, opening is refused, and names the remedy."""
    storage = store_with(1)
    lose(storage, 1)
    before = dict(storage._objects)
    with pytest.raises(CorruptionError) as caught:
        World(storage).open()
    assert caught.value.kind == LOST
    assert "rebuild-catalog" in caught.value.remedy
    assert storage._objects == before


def test_a_record_of_the_hint_that_was_written_again_is_noticed():
    """The number is taken, but by another record: the hint knows its digest."""
    storage, before = case(lost=1)

    def die(name):
        if name == "open.after_record":  # before the base record that lists it again
            raise SimulatedCrash(name, 1)

    with pytest.raises(SimulatedCrash), failpoint_handler(die):
        World(storage).open()
    plan = recovery_plan(storage, PIPELINE)
    assert any("another record" in note for note in plan.notes), plan
    assert plan.epoch_next > before[0].epoch


def test_what_a_crash_leaves_is_no_loss():
    """A manifest whose record was never written is a leftover, and its epoch is free."""
    storage = store_with(2)
    world = World(storage, value=2)
    world.open()

    def die(name):
        if name == "commit.after_barrier":
            raise SimulatedCrash(name, 1)

    with pytest.raises(SimulatedCrash), failpoint_handler(die):
        world.commit()
    plan = recovery_plan(storage, PIPELINE)
    assert not plan.damaged
    assert plan.epoch_next == 2
    again = World(storage)
    again.open()
    assert again.store.cleanup.deleted
    assert_verified(storage)


def test_half_a_sync_is_no_loss():
    """A replica that has manifests but not yet the record was never ahead."""
    from holdfast.checkpoint.replication.sync import sync_pipeline

    source, target = store_with(2), MemoryStorage("target")
    sync_pipeline(source, target, PIPELINE)
    more = World(source, value=2)
    more.open()
    for _ in range(4):
        more.commit()
    for entry in source.list(f"{PIPELINE}/checkpoints"):
        if not target.exists(entry.path):
            target.put(entry.path, source.get(entry.path))
    assert not recovery_plan(target, PIPELINE).damaged
    World(target).open()
    assert_verified(target)


def test_a_writer_that_commits_meanwhile_is_no_loss():
    """Whatever comes between the look at the hint and the look at the catalog, nobody cries."""

    def make():
        storage = MemoryStorage()
        world = World(storage)
        world.open()
        world.commit()
        world.outcome()
        return storage, world

    def work(made, on):
        return recovery_plan(on(made[0]), PIPELINE)

    def other(made):
        for _ in range(3):
            made[1].commit()
            made[1].outcome()
            made[1].store.retain()

    def check(made, plan):
        assert not isinstance(plan, HoldfastError), plan
        assert plan.refusal is None, plan
        assert not plan.damaged, plan

    at_every_moment(make, work, other, check)


def test_the_command_line_says_it_and_exits_with_1(tmp_path):
    """`recover --plan` names what was lost."""
    with open_store(LocalStorage(tmp_path), PIPELINE, topology=TOPOLOGY, settings=SETTINGS) as one:
        for value in range(2):
            with one.draft() as draft:
                fill(draft, value, [*range(value)])
                one.commit(draft)
    newest = max((tmp_path / PIPELINE / "catalog").iterdir())
    newest.unlink()
    program = Path(sys.executable).with_name("holdfast")
    environment = child_environment()
    done = subprocess.run(
        [program, "recover", "--plan", f"{tmp_path}/{PIPELINE}"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "lost" in done.stdout
    assert "rebuild-catalog" in done.stdout


@pytest.mark.parametrize("older", [1, 3])
def test_a_plan_is_made_while_older_checkpoints_are_settled_and_retired(older):
    """Tokens that waited when the catalog was read, and are gone since, are no lost tokens."""

    def make():
        storage = MemoryStorage()
        world = World(storage)
        world.open()
        for _ in range(older + 1):
            world.commit()
        return storage, world

    def work(made, on):
        return recovery_plan(on(made[0]), PIPELINE)

    def other(made):
        world = made[1]
        for token in world.store.pending():
            world.store.record_outcome(token.checkpoint, token.sink, "committed")
        for _ in range(3):
            world.commit()
            world.outcome()
            assert world.store.retain().error is None

    def check(made, plan):
        assert not isinstance(plan, HoldfastError), plan
        assert plan.refusal is None, plan
        assert not plan.damaged, plan

    at_every_moment(make, work, other, check)


def test_a_token_that_is_really_lost_is_still_refused():
    """Looking again does not make a manifest come back."""
    storage = store_with(3, replay="deduplicates")
    oldest = read_store(storage, PIPELINE).list()[-1]
    storage.delete(f"{PIPELINE}/checkpoints/{oldest.checkpoint}/manifest.json")
    plan = recovery_plan(storage, PIPELINE)
    assert plan.refusal is not None
    assert plan.refusal.kind == "token_lost"


@pytest.mark.parametrize("lost", [3, 4])
@pytest.mark.parametrize("more", [1, 3])
def test_a_rebuild_after_numbers_were_used_again(lost, more):
    """What was lost and what came then have the same numbers, and both were committed."""
    world = World(MemoryStorage())
    world.open()
    for _ in range(6):
        world.commit()
        world.outcome()
    head = world.store._catalog.state.head
    for number in range(head - lost + 1, head + 1):
        world.storage.delete(f"{PIPELINE}/catalog/{number:020}.json")
    world.open()
    for _ in range(more):
        world.commit()
        world.outcome()
    newest = told(world.store.reader, world.store.list()[0])
    assert len(newest) == 6 - lost + more
    for entry in list(world.storage.list(f"{PIPELINE}/catalog")):
        world.storage.delete(entry.path)
    rebuild_catalog(world.storage, PIPELINE, clock=world.clock)
    reader = read_store(world.storage, PIPELINE)
    assert told(reader, reader.resolve("latest")) == newest
    assert_verified(world.storage)
