"""Sync, fork, pins and rebuild, with somebody else's whole work at each of their moments."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.checkpoint import open_store, read_store, rebuild_catalog, verify_store
from holdfast.checkpoint.commit.catalog import record_numbers
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.pins import pin, unpin
from holdfast.checkpoint.replication.fork import fork_pipeline
from holdfast.checkpoint.replication.sync import sync_pipeline
from holdfast.clock import ManualClock
from holdfast.errors import FencedError, HoldfastError, NotFoundError, RefusedError
from holdfast.format import paths
from holdfast.storage import LocalStorage, MemoryStorage
from holdfast.testing import HookedStorage
from tests.helpers.interleave import Moments, at_every_moment
from tests.helpers.scenes import PIPELINE, SETTINGS, TOPOLOGY, World, assert_verified, told

FORK = "f"


def pipeline(commits):
    """A store with a writer that goes on living."""
    scene = SimpleNamespace(source=MemoryStorage("source"), clock=ManualClock(), confirmed=[])
    scene.writer = World(scene.source)
    scene.writer.open()
    for _ in range(commits):
        scene.writer.commit()
        scene.writer.outcome()
    scene.first = scene.writer.store.list()[-1].checkpoint
    return scene


def go_on(scene, commits=2):
    """Commit, and let go of what the settings no longer keep."""
    for _ in range(commits):
        scene.writer.commit()
        scene.writer.outcome()
        assert scene.writer.store.retain().error is None


def assert_readable(storage, name=PIPELINE):
    assert_verified(storage, name)
    reader = read_store(storage, name)
    for summary in reader.list():
        manifest = reader.manifest(summary)
        for entry in manifest.files:
            storage.get(reader.directory.file(entry))


# Sync


def replicated(commits=2, more=0):
    scene = pipeline(commits)
    scene.target = MemoryStorage("target")
    if more:
        sync(scene)
        go_on(scene, more)
    return scene


def sync(scene, on=lambda storage: storage):
    return sync_pipeline(on(scene.source), on(scene.target), PIPELINE, clock=scene.clock)


def both_whole(scene, answer):
    assert not isinstance(answer, Exception), answer
    assert_readable(scene.source)
    assert_readable(scene.target)


def source_goes_on(scene):
    go_on(scene)
    scene.writer.store.compact()


def source_goes_on_and_syncs(scene):
    go_on(scene, 1)
    scene.writer.store.compact()
    sync(scene)
    assert_verified(scene.target)
    go_on(scene, 1)


@pytest.mark.parametrize(
    ("commits", "more"), [(1, 0), (1, 1), pytest.param(3, 2, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("other", [source_goes_on, source_goes_on_and_syncs])
def test_a_sync_survives_a_busy_source_and_another_sync(commits, more, other):
    """A source that commits, retires and compacts, or a second sync, only makes it look again."""
    at_every_moment(lambda: replicated(commits, more), sync, other, both_whole)


def test_the_destination_is_whole_at_every_moment_of_a_sync():
    """Whoever verifies a replica while it is brought forward finds no damage."""

    def verified(scene):
        if scene.target.exists(f"{PIPELINE}/holdfast.json"):
            assert_verified(scene.target)

    at_every_moment(lambda: replicated(more=1), sync, verified, both_whole)


def test_a_savepoint_at_the_destination_holds_although_a_sync_is_under_way():
    """A pin that was confirmed on a replica keeps its checkpoint, and what sinks said of it."""

    def pinned(scene):
        try:
            reader = read_store(scene.target, PIPELINE)
            pin(reader, scene.target, scene.clock, label="mine", ref=scene.first)
            scene.confirmed.append(scene.first)
        except NotFoundError:
            return

    def held(scene, answer):
        assert not isinstance(answer, Exception), answer
        go_on(scene, 1)
        sync(scene)
        both_whole(scene, None)
        reader = read_store(scene.target, PIPELINE)
        live = {summary.checkpoint: summary.epoch for summary in reader.list()}
        assert live.keys() >= {*scene.confirmed}
        told_of = {
            paths.classify(entry.path).epoch for entry in reader.directory.list(paths.OUTCOMES)
        }
        assert told_of >= {live[checkpoint] for checkpoint in scene.confirmed}

    at_every_moment(lambda: replicated(more=1), sync, pinned, held)


def test_two_first_syncs_to_one_directory_do_not_mix(tmp_path):
    """The first sync locks its destination as soon as it is one: the second is refused."""
    scene = pipeline(2)
    refused = []

    def second():
        with pytest.raises(HoldfastError) as caught:
            sync_pipeline(scene.source, LocalStorage(tmp_path), PIPELINE, clock=scene.clock)
        refused.append(caught.value.kind)

    moments = Moments(1, second)

    def hook(moment, operation, path):
        if operation == "create":  # the first file is on its way
            moments.hook(moment, operation, path)

    target = HookedStorage(LocalStorage(tmp_path), hook)
    sync_pipeline(scene.source, target, PIPELINE, clock=scene.clock)
    assert refused == ["locked"]
    assert_verified(LocalStorage(tmp_path))


# Fork


def fork(scene, on=lambda storage: storage):
    return fork_pipeline(on(scene.source), PIPELINE, scene.first, FORK, clock=scene.clock)


def fork_is_whole_or_nothing(scene, answer):
    """The origin goes on and collects; a fork that lists a checkpoint has all of its files."""
    writer = World(scene.source)
    writer.open()
    scene.writer = writer
    go_on(scene, 3)
    writer.store.gc()
    assert_readable(scene.source)
    if scene.source.exists(f"{FORK}/holdfast.json"):
        assert_readable(scene.source, FORK)
    if isinstance(answer, Exception):
        assert answer.kind in ("no_checkpoint", "retired", "fenced", "pipeline_exists"), answer
    else:
        assert read_store(scene.source, FORK).list()


def origin_collects(scene):
    scene.writer.store.gc()


def pin_is_let_go(scene):
    try:
        unpin(read_store(scene.source, PIPELINE), scene.source, f"fork-{FORK}")
    except HoldfastError as error:
        assert error.kind in ("no_pin", "fork_in_use")


def pin_is_let_go_and_origin_collects(scene):
    pin_is_let_go(scene)
    scene.writer.store.gc()


def second_fork(scene):
    if not [*scene.source.list(f"{FORK}/checkpoints")]:
        fork(scene)


def fork_opened(scene, on=lambda storage: storage):
    return open_store(
        on(scene.source), FORK, topology=TOPOLOGY, settings=SETTINGS, clock=scene.clock
    )


def fork_collects(scene):
    if scene.source.exists(f"{FORK}/holdfast.json"):
        fork_opened(scene).gc()
    scene.writer.store.gc()


@pytest.mark.parametrize(
    "other",
    [origin_collects, pin_is_let_go, pin_is_let_go_and_origin_collects, second_fork, fork_collects],
)
def test_a_fork_has_all_of_its_files_or_is_no_fork(other):
    """Whatever comes between, a fork never lists a checkpoint whose files its origin may take."""
    at_every_moment(lambda: pipeline(3), fork, other, fork_is_whole_or_nothing)


def test_a_collection_of_an_empty_pipeline_lets_no_pin_of_a_new_fork_go():
    """A gc that began before a fork of that name is fenced before it deletes the fork's pin."""

    def scene():
        made = pipeline(3)
        fork_opened(made)
        return made

    def collect(made, on):
        fork_opened(made, on).gc()
        if not [*made.source.list(f"{FORK}/checkpoints")]:
            fork(made)  # nothing came between

    at_every_moment(scene, collect, second_fork, fork_is_whole_or_nothing)


def test_unpin_that_slept_through_a_fork_puts_the_pin_back():
    """Between the question and the deletion, the fork may have come to need its pin."""

    def scene():
        made = pipeline(3)
        reader = read_store(made.source, PIPELINE)
        note = f"shared with pipeline {FORK}"  # what a fork that died has left
        pin(reader, made.source, made.clock, label=f"fork-{FORK}", ref=made.first, note=note,
            fork=True)  # fmt: skip
        return made

    def let_go(made, on):
        storage = on(made.source)
        return unpin(read_store(storage, PIPELINE), storage, f"fork-{FORK}")

    def check(made, answer):
        if not [*made.source.list(f"{FORK}/checkpoints")]:
            assert answer is None
        else:
            assert answer is None or answer.kind == "fork_in_use"
            fork_is_whole_or_nothing(made, None)

    at_every_moment(scene, let_go, second_fork, check)


# Pins


def test_letting_a_savepoint_go_disturbs_nobody():
    """A pin that vanishes while the pins are read is no error, and stops no retention."""

    def scene():
        made = pipeline(3)
        reader = read_store(made.source, PIPELINE)
        pin(reader, made.source, made.clock, label="other", ref="latest")
        return made

    def let_go(made):
        unpin(read_store(made.source, PIPELINE), made.source, "other")

    def verify(made, on):
        return verify_store(read_store(on(made.source), PIPELINE))

    def collect(made, on):
        world = World(on(made.source))
        world.open()
        pin(world.store.reader, made.source, made.clock, label="mine", ref="epoch:0")
        return world.store.gc()

    def check(made, answer):
        assert not isinstance(answer, Exception), answer
        assert getattr(answer, "ok", True), answer
        assert_readable(made.source)

    at_every_moment(scene, verify, let_go, check)
    at_every_moment(scene, collect, let_go, check)


def test_a_pin_that_was_there_already_is_confirmed_only_if_it_holds():
    """Another process's pin on a checkpoint that was dropped meanwhile protects nothing."""
    scene = pipeline(3)
    reader = read_store(scene.source, PIPELINE)
    path = f"{PIPELINE}/pins/gold.json"
    pin(reader, scene.source, scene.clock, label="gold", ref=scene.first)
    asleep = scene.source.get(path)  # what a process puts that has slept since it looked
    scene.source.delete(path)
    scene.clock.advance_ms(1)

    def work(made, on):
        storage = on(made.source)
        return pin(read_store(storage, PIPELINE), storage, made.clock, label="gold", ref=made.first)

    def other(made):
        made.writer.store.retain()
        made.source.put(path, asleep)

    def before_the_pin(moment, operation, name):
        if operation == "put_new" and moment == "before":
            moments.hook(moment, operation, name)

    moments = Moments(1, lambda: other(scene))
    with pytest.raises(NotFoundError) as caught:
        work(scene, lambda storage: HookedStorage(storage, before_the_pin))
    assert caught.value.kind == "no_checkpoint"
    assert not scene.source.exists(path)
    assert_verified(scene.source)


# Rebuild


def torn(number):
    def make():
        scene = pipeline(3)
        path = [*scene.source.list(f"{PIPELINE}/catalog")][number].path
        scene.source.put(path, scene.source.get(path)[:-9])
        return scene

    return make


def writer_goes_on(scene):
    try:
        scene.confirmed.append(scene.writer.commit().checkpoint)
        scene.writer.outcome()
        scene.writer.store.retain()
    except FencedError:
        return


def rebuild(scene, on, *, force=False):
    return rebuild_catalog(on(scene.source), PIPELINE, force=force, clock=scene.clock)


def nothing_is_lost(scene, answer):
    if isinstance(answer, Exception):
        assert answer.kind in ("catalog_whole", "fenced"), answer
    writer_goes_on(scene)  # fenced, or heard
    assert_readable(scene.source)
    reader = read_store(scene.source, PIPELINE)
    told(reader, reader.resolve("latest"))
    live = {summary.checkpoint for summary in reader.list()}
    assert live >= {*scene.confirmed[-2:]}, "a confirmed commit is lost"


@pytest.mark.parametrize("number", [2, -1])
def test_a_rebuild_beside_a_live_writer_loses_no_commit(number):
    """What a live writer was told is committed is in the rebuilt catalog, or it was fenced."""
    at_every_moment(torn(number), rebuild, writer_goes_on, nothing_is_lost)


def test_a_forced_rebuild_of_a_whole_catalog_fences_the_writer():
    """A writer whose catalog was replaced under it is told so, instead of writing into nowhere."""
    at_every_moment(
        lambda: pipeline(3),
        lambda scene, on: rebuild(scene, on, force=True),
        writer_goes_on,
        nothing_is_lost,
    )
    scene = pipeline(3)
    records = PipelineDirectory(scene.source, PIPELINE)
    before = max(record_numbers(records))
    rebuild(scene, lambda storage: storage, force=True)
    assert max(record_numbers(records)) == before + 1, "the very number that the writer would take"


def test_a_rebuild_lists_nothing_that_a_retention_is_removing():
    """What a readable record has dropped is left out: its files may go at this moment."""

    def retain(scene, on):
        world = World(on(scene.source))
        world.open(clean_up=False)
        return world.store.retain()

    def forced(scene):
        rebuild(scene, lambda storage: storage, force=True)

    def check(scene, answer):
        assert not isinstance(answer, Exception) or answer.kind in ("fenced", "retired"), answer
        assert_readable(scene.source)

    at_every_moment(lambda: pipeline(4), retain, forced, check)


def test_two_rebuilds_make_one_catalog():
    """Of two that race, one writes; the other finds the catalog whole."""

    def check(scene, answer):
        if isinstance(answer, Exception):
            assert answer.kind == "catalog_whole", answer
        assert_readable(scene.source)

    def other(scene):
        try:
            rebuild(scene, lambda storage: storage)
        except RefusedError as error:
            assert error.kind == "catalog_whole", error

    at_every_moment(torn(2), rebuild, other, check)
