"""Many writers on one store: one holds it, the others get a typed error, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading

import msgspec
import pytest

from holdfast.checkpoint import open_storage, open_store, read_store, recovery_plan, verify_store
from holdfast.clock import SystemClock
from holdfast.errors import (
    ConflictError,
    FencedError,
    HoldfastError,
    NotFoundError,
    RefusedError,
)
from holdfast.storage import LocalStorage, MemoryStorage
from holdfast.testing import FaultyDisk, HookedStorage
from tests.helpers.interleave import at_every_moment
from tests.helpers.paths import child_environment
from tests.helpers.scenes import (
    PIPELINE,
    SETTINGS,
    TOPOLOGY,
    World,
    assert_verified,
    fill,
    snapshot,
    told,
)

RACERS = 32


@pytest.fixture(params=["memory", "disk", "s3"])
def place(request, tmp_path):
    """A function that opens the same storage again, as another process would."""
    if request.param == "memory":
        storage = MemoryStorage()
        return lambda: storage
    if request.param == "disk":
        # Many threads of one process: no real syncs, which would only make the race slower.
        return lambda: LocalStorage(tmp_path, disk=FaultyDisk(kind="eio", nth=0))
    url, options = request.getfixturevalue("s3_url"), request.getfixturevalue("s3_options")
    return lambda: open_storage(url, options=options)


def race(count, work):
    """Run `work(n)` in so many threads at once; results by number, errors included."""
    results = [None] * count
    start = threading.Barrier(count)

    def run(number):
        start.wait()
        try:
            results[number] = work(number)
        except HoldfastError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def opened(storage, **options):
    return open_store(
        storage, PIPELINE, topology=TOPOLOGY, settings=SETTINGS, clock=SystemClock(), **options
    )


def test_32_writers_race_for_one_record(place):
    """Of 32 writers that hold the same state, exactly one commits and 31 are fenced."""
    first = opened(place())
    with first.draft() as draft:
        fill(draft, 100, [])
        first.commit(draft)
    # All of them believe that they are the one writer: the same catalog state, other storages.
    stores = [opened(place(), clean_up=False) for _ in range(1)]
    stores += [clone(stores[0], place()) for _ in range(RACERS - 1)]

    def work(number):
        with stores[number].draft() as draft:
            fill(draft, number, [100])
            return stores[number].commit(draft).checkpoint

    results = race(RACERS, work)
    winners = [result for result in results if isinstance(result, str)]
    losers = [result for result in results if isinstance(result, HoldfastError)]
    assert len(winners) == 1
    assert len(losers) == RACERS - 1
    assert all(isinstance(error, FencedError) for error in losers)
    reader = read_store(place(), PIPELINE)
    assert [entry.checkpoint for entry in reader.catalog().live][1:] == winners
    assert told(reader, reader.resolve("latest")) == (100, results.index(winners[0]))
    after = World(place())
    after.open()
    assert after.lineage() == [100, results.index(winners[0])]
    assert_verified(place())


def clone(store, storage):
    """Another store object with the same state, as a process that was copied with its memory."""
    import copy

    from holdfast.checkpoint.commit.catalog import CatalogWriter
    from holdfast.checkpoint.directory import PipelineDirectory
    from holdfast.ids import RandomIds

    twin = copy.copy(store)
    twin._drafts = {}
    twin._environment = msgspec_replace(store._environment, storage)
    directory = PipelineDirectory(storage, PIPELINE)
    twin.reader = type(store.reader)(directory)
    twin._catalog = CatalogWriter(
        directory, storage, store._catalog.state, RandomIds().writer_id(), SystemClock()
    )
    return twin


def msgspec_replace(around, storage):
    from dataclasses import replace

    return replace(around, storage=storage)


def test_32_writers_race_to_open_and_commit(place):
    """32 that open, commit and go on: every commit that returned is in the catalog, once, in order."""
    returned = []

    def work(number):
        store = opened(place())
        lineage = World(place(), store=store).lineage()
        with store.draft() as draft:
            fill(draft, number, lineage)
            summary = store.commit(draft)
        returned.append((summary.epoch, number))
        return number

    results = race(RACERS if place().parallel == 1 else 8, work)
    errors = [result for result in results if isinstance(result, HoldfastError)]
    # One that is fenced may read first, and find what it reads retired by its successors.
    assert {type(error) for error in errors} <= {FencedError, ConflictError, NotFoundError}, errors
    assert len(returned) + len(errors) == len(results)
    assert returned
    reader = read_store(place(), PIPELINE)
    live = reader.catalog().live
    epochs = [entry.epoch for entry in live]
    assert epochs == sorted(set(epochs))
    known = {(entry.epoch, told(reader, entry)[-1]) for entry in live}
    assert set(returned) <= known
    newest = [entry for entry in live if not entry.abandoned][-1]
    assert told(reader, newest)[-1] == max(returned)[1]
    world = World(place())
    world.open()
    assert_verified(place())


PROCESS = """
import sys
from tests.helpers.scenes import *
from holdfast.checkpoint import open_store
from holdfast.errors import ConflictError
number = int(sys.argv[2])
world = World(sys.argv[1])
sys.stdin.readline()
try:
    world.open()
    lineage = world.lineage()
    with world.store.draft() as draft:
        fill(draft, number, lineage)
        epoch = world.store.commit(draft).epoch
    print("committed", epoch, number)
except ConflictError as error:
    print("conflict", error.kind, number)
"""


def test_8_processes_race_on_local_disk(tmp_path):
    """Eight processes on one directory, with real locks off: whoever returns is in the catalog."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=child_environment(),
        )
        for number in range(8)
    ]  # fmt: skip
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        answers.append(out.split())
    committed = {(int(a[1]), int(a[2])) for a in answers if a[0] == "committed"}
    assert committed
    reader = read_store(tmp_path, PIPELINE)
    known = {(entry.epoch, told(reader, entry)[-1]) for entry in reader.catalog().live}
    assert committed <= known
    World(LocalStorage(tmp_path)).open()
    assert_verified(LocalStorage(tmp_path))


def test_lock_keeps_a_second_process_out(tmp_path):
    """With exclusive use, a second opening on local disk is refused while the first one lives."""
    settings = msgspec.structs.replace(SETTINGS, exclusive=True)
    first = World(LocalStorage(tmp_path), settings=settings)
    first.open()
    second = World(LocalStorage(tmp_path), settings=settings)
    with pytest.raises(ConflictError) as caught:
        second.open()
    assert caught.value.kind == "locked"
    first.commit()
    first.store.close()
    second.open()
    assert second.lineage() == [0]


def successor(storage, *, compactions):
    """Takes over, commits, and folds the catalog."""
    world = World(storage)
    world.open()
    world.commit()
    world.outcome()
    for _ in range(compactions):
        world.store.compact()
        world.commit()
    return world


def zombie_and_successor(storage, stop, work, compactions):
    """Run `work` on an old writer; at its `stop`-th moment a successor takes over completely.

    Returns what the old writer got, whether the successor ran, and what it left.
    """
    moments = 0
    state = {}

    def hook(moment, operation, path):
        nonlocal moments
        moments += 1
        if moments == stop and "now" not in state:
            state["now"] = None
            state["world"] = successor(storage, compactions=compactions)
            state["now"] = snapshot(storage)

    old = World(HookedStorage(storage, hook))
    moments = -(10**9)
    old.open()
    old.commit()
    old.outcome()
    moments = 0
    try:
        answer = work(old)
    except HoldfastError as error:
        answer = error
    return answer, state


def commit(world):
    return world.commit()


def retain(world):
    return world.store.retain()


def gc(world):
    return world.store.gc()


def clean_up(world):
    return world.store.clean_up()


def compact(world):
    return world.store.compact()


def prepared(storage):
    """Enough history for retention to have something to do, and a leftover."""
    world = World(storage)
    world.open()
    for _ in range(3):
        world.commit()
        world.outcome()
    fill(world.store.draft(), 77, [0, 1, 2])


@pytest.mark.parametrize("compactions", [0, 1, 2])
@pytest.mark.parametrize("work", [commit, retain, gc, clean_up, compact])
def test_zombie_is_fenced_wherever_it_was_asleep(work, compactions):
    """A writer that wakes up after its successor, at any operation, harms nothing and learns it."""
    for stop in range(1, 10_000):
        storage = MemoryStorage()
        prepared(storage)
        answer, state = zombie_and_successor(storage, stop, work, compactions)
        if not state:
            assert stop > 2
            return
        now, left = snapshot(storage), state["now"]
        context = (work.__name__, stop, compactions, answer)
        assert now == left, context  # nothing that the successor saw has changed
        assert_verified(storage)
        if work is commit and not isinstance(answer, HoldfastError):
            kept = {(epoch, lineage) for epoch, lineage, *_ in now["live"]}
            assert answer.epoch in {epoch for epoch, _ in kept}, context
        state["world"].commit()  # the successor goes on
        fresh = World(storage)
        fresh.open()
        assert fresh.lineage() == state["world"].lineage()
        assert_verified(storage)
    pytest.fail("the work never ran through undisturbed")


@pytest.mark.parametrize("compactions", [0, 1, 2])
def test_zombie_cannot_commit_after_its_successor(place, compactions):
    """A writer that commits after its successor has started, also after a compaction, is fenced."""
    old = World(place(), clock=SystemClock())
    old.open()
    old.commit()
    new = successor(place(), compactions=compactions)
    left = snapshot(place())
    with pytest.raises(FencedError):
        old.commit()
    for attempt in (old.commit, old.store.retain, old.store.gc, old.store.compact):
        with pytest.raises(FencedError):
            attempt()
    old.store.close()
    assert snapshot(place()) == left
    new.commit()
    assert_verified(place())


def busy_pipeline(storage):
    """Another writer: opens, commits past what retention keeps, pins, and cleans up."""
    world = World(storage)
    world.open()
    for number in range(4):
        world.commit()
        world.outcome()
        world.store.retain()
        if number == 2:
            world.store.pin("kept")
    world.store.compact()
    world.store.unpin("kept")


def open_and_commit(storage):
    world = World(storage)
    world.open()
    return world.commit()


def verify_deep(storage):
    report = verify_store(read_store(storage, PIPELINE), deep=True)
    assert report.ok, [str(finding) for finding in report.all_findings()]
    return report


def plan(storage):
    made = recovery_plan(storage, PIPELINE)
    assert made.refusal is None, made
    return made


def ls(storage):
    return read_store(storage, PIPELINE).list()


@pytest.mark.parametrize("work", [open_and_commit, verify_deep, plan, ls])
@pytest.mark.parametrize("history", [0, 1, 4])
def test_a_store_that_changes_while_it_is_read_is_not_called_damaged(work, history):
    """Wherever another writer commits and cleans up in between, nobody sees damage in it."""

    def make():
        storage = MemoryStorage()
        world = World(storage)
        if history or work in (verify_deep, ls):
            world.open()
        if work is ls and not history:  # the header of a first opening, before its record
            storage.delete(f"{PIPELINE}/catalog/{0:020}.json")
        for _ in range(history):
            world.commit()
            world.outcome()
        return storage

    def check(storage, answer):
        # Who is fenced may first find that what it reads was retired by its successor.
        fenced = work is open_and_commit and isinstance(answer, (ConflictError, NotFoundError))
        assert fenced or not isinstance(answer, HoldfastError), answer
        if snapshot(storage)["live"]:  # planning alone writes nothing
            assert_verified(storage)

    at_every_moment(make, lambda storage, on: work(on(storage)), busy_pipeline, check)


def test_what_is_damaged_stays_damaged_while_the_pipeline_runs():
    """A second look forgives only what the pipeline itself has given up."""
    storage = MemoryStorage()
    world = World(storage)
    world.open()
    world.commit()
    world.outcome()
    world.commit()
    kept = world.store.reader.manifest("latest")
    damaged = world.store.reader.directory.file(kept.files[0])
    storage.delete(damaged)

    def hook(moment, operation, path):
        if not done:
            done.append(True)
            world.commit()  # inherits the lost file, which stays part of live checkpoints

    done = []
    report = verify_store(read_store(HookedStorage(storage, hook), PIPELINE))
    assert done
    assert [finding.kind for finding in report.all_findings() if finding.severity == "error"] == [
        "missing"
    ]


def test_zombie_after_a_rebuild_is_fenced():
    """A writer that outlives its catalog cannot write into the rebuilt one."""
    from holdfast.checkpoint import rebuild_catalog

    storage = MemoryStorage()
    first = World(storage)
    first.open()
    first.commit()
    old = World(storage)
    old.open()  # the catalog's head is now an open record that no manifest tells of
    for entry in [*storage.list(f"{PIPELINE}/catalog")]:
        storage.delete(entry.path)
    rebuild_catalog(storage, PIPELINE)
    with pytest.raises(FencedError):
        old.commit()
    world = World(storage)
    world.open()
    assert world.lineage() == [0]
    world.commit()
    assert_verified(storage)


def test_savepoint_pinned_during_a_drop_survives_a_crash():
    """A pin that was confirmed holds, although the drop was under way and its writer died."""
    from holdfast.failpoints import failpoint_handler
    from holdfast.testing import SimulatedCrash

    for settings in (msgspec.structs.replace(SETTINGS, retain=2),):
        storage = MemoryStorage()
        prepared(storage)
        pinner = read_store(storage, PIPELINE)
        world = World(storage, settings=settings)
        world.open()

        def hook(name, storage=storage, pinner=pinner):
            if name == "gc.before_record":
                from holdfast.checkpoint.pins import pin

                pin(pinner, storage, SystemClock(), label="gold", ref="epoch:0")
            if name == "gc.after_record":
                raise SimulatedCrash(name, 1)

        with pytest.raises(SimulatedCrash), failpoint_handler(hook):
            world.store.retain()
        again = World(storage, settings=settings)
        again.open()
        assert ("gold", 0) in snapshot(storage)["pins"]
        assert_verified(storage)


def test_savepoint_pinned_during_a_delete_survives():
    """A pin that was confirmed before the drop record of a delete keeps its checkpoint."""
    from holdfast.checkpoint.pins import pin
    from holdfast.failpoints import failpoint_handler

    storage = MemoryStorage()
    prepared(storage)
    world = World(storage)
    world.open()

    def hook(name):
        if name == "delete.before_record":
            pin(read_store(storage, PIPELINE), storage, SystemClock(), label="gold", ref="epoch:0")

    with failpoint_handler(hook), pytest.raises(RefusedError, match="pinned meanwhile"):
        world.store.delete("epoch:0")
    assert ("gold", 0) in snapshot(storage)["pins"]
    assert_verified(storage)
