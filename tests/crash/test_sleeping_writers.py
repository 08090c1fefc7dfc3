"""Writers that fall asleep anywhere: none that was overtaken is ever told "done".

The real code over storage in memory, one storage operation at a time, in every order that two
sleepers can have and in random orders of five writers; then real processes that are stopped and
continued, on a disk and on an S3 server. What every writer was told is compared with the history
that the newest checkpoint carries.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import uuid

import pytest

from holdfast.checkpoint import open_store, read_store, rebuild_catalog, verify_store
from holdfast.errors import ConflictError, FencedError, HoldfastError
from holdfast.storage import MemoryStorage, open_storage
from tests.helpers.effort import SOAK
from tests.helpers.interleave import Actor
from tests.helpers.paths import PROGRAMS, child_environment
from tests.helpers.programs.race import NAME, SETTINGS, TOPOLOGY, commit, history

ROUNDS = 3_000 if SOAK else 150


def opened(storage, **options):
    return open_store(storage, NAME, topology=TOPOLOGY, settings=SETTINGS, takeover=True, **options)


def assert_told_the_truth(storage, told):
    """Everything that was told done is in the one history, once, at the place that was told."""
    reader = read_store(storage, NAME)
    state = reader.catalog()
    values = history(reader, reader.manifest("latest"))
    assert len(values) == len(set(values))
    for sequence, position, value in told:
        assert values[position - 1] == value, (sequence, position, value, values)
    assert len({position for _, position, _ in told}) == len(told), "a position was done twice"
    assert len({sequence for sequence, _, _ in told}) == len(told), "a record was done twice"
    assert not state.damage
    report = verify_store(reader, deep=True)
    assert report.ok, [str(finding) for finding in report.all_findings()]
    return report


def dead_records(report):
    return [finding for finding in report.all_findings() if finding.kind == "dead_record"]


def prepared(storage):
    """A store with a history, and two writers in it that hold it no more."""
    told = []
    first = opened(storage)
    commit(first, 1, told)
    return told


def opens_and_commits(value, told):
    """Without a clean-up, which would ask once more who holds the store."""

    def work(storage):
        store = opened(storage, clean_up=False)
        commit(store, value, told)
        return store

    return work


def successor(storage, told, *, compactions):
    """The rightful writer: it commits, and folds the catalog."""
    store = opened(storage)
    value = 100
    for _ in range(compactions):
        for _ in range(3):
            commit(store, value := value + 1, told)
        store.compact()
    commit(store, value + 1, told)
    return store


def moments_of(work):
    """How many storage operations some work has, undisturbed."""
    storage = MemoryStorage()
    prepared(storage)
    actor = Actor(storage, work([]))
    actor.run()
    assert not isinstance(actor.answer, BaseException), actor.answer
    return actor.operations


@pytest.mark.parametrize("compactions", [1, 2])
def test_two_sleepers_and_a_compaction(compactions):
    """Wherever two writers sleep while a third compacts, in either order of waking: both are told."""
    count = moments_of(lambda told: opens_and_commits(2, told))
    step = 1 if SOAK else 2
    # The second one finds a longer catalog, and takes a few operations more.
    for one, two in itertools.product(range(1, count), range(0, count + 4, step)):
        storage = MemoryStorage()
        told = prepared(storage)
        sleepers = [
            Actor(storage, opens_and_commits(2, told)),
            Actor(storage, opens_and_commits(3, told)),
        ]
        sleepers[0].run(one)
        sleepers[1].run(two)
        successor(storage, told, compactions=compactions)
        for sleeper in sleepers:
            sleeper.run()
            assert not isinstance(sleeper.answer, AssertionError), sleeper.answer
        try:
            assert_told_the_truth(storage, told)
            commit(opened(storage), 999, told)
            assert_told_the_truth(storage, told)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"asleep at {one} and {two}: {error}") from error


def random_work(chance, number, told):
    """What a writer does in a life: it opens, commits, compacts, retires and collects."""

    def work(storage):
        for life in range(2):
            try:
                store = opened(storage, clean_up=chance.random() < 0.5)
                for turn in range(chance.randint(1, 4)):
                    commit(store, number * 1_000 + life * 100 + turn, told)
                    act = chance.choice([store.compact, store.retain, store.gc, lambda: None])
                    act()
                    if chance.random() < 0.3:
                        store.check_alive()
            except ConflictError:
                continue

    return work


def random_race(seed):
    """Five writers, in an order that follows from the seed: long sleeps, and short steps."""
    chance = random.Random(seed)
    storage = MemoryStorage()
    told = prepared(storage)
    actors = [
        Actor(storage, random_work(random.Random(f"{seed}/{number}"), number, told))
        for number in range(2, 7)
    ]
    waiting = [*actors]
    while waiting:
        actor = chance.choice(waiting)
        if not actor.run(chance.choice([1, 1, 2, 5, 20, 60])):
            waiting.remove(actor)
            assert not isinstance(actor.answer, AssertionError), actor.answer
    return storage, told


@pytest.mark.parametrize("part", range(4))
def test_random_interleavings_of_five_writers(part):
    """In every order, what was told done is the history; the seed replays it."""
    for seed in range(part, ROUNDS, 4):
        try:
            storage, told = random_race(seed)
            assert_told_the_truth(storage, told)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def zombies(storage, told, count):
    """Writers that have opened one after the other, each fenced by the next."""
    stores = [opened(storage) for _ in range(count)]
    right = opened(storage)
    for value in range(50, 53):
        commit(right, value, told)
    right.compact()
    return stores, right


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_dead_record_is_named_and_removed(count):
    """What an overtaken writer put into a freed number is found by verify, and goes with a gc."""
    storage = MemoryStorage()
    told = prepared(storage)
    stores, right = zombies(storage, told, count)
    for number, store in enumerate(stores):
        with pytest.raises(FencedError):
            commit(store, 200 + number, told)
    report = assert_told_the_truth(storage, told)
    dead = dead_records(report)
    assert len(dead) == count
    assert {finding.severity for finding in dead} == {"warning"}
    assert all(storage.exists(finding.path) for finding in dead)
    commit(right, 300, told)
    right.compact()
    assert dead_records(assert_told_the_truth(storage, told)) == []


def test_an_interrupted_compaction_leaves_no_dead_record():
    """Records that lead to the base are old, not dead."""
    from holdfast.failpoints import failpoint_handler
    from holdfast.testing import SimulatedCrash

    storage = MemoryStorage()
    told = prepared(storage)
    store = opened(storage)
    commit(store, 2, told)

    def die(name):
        if name == "compact.after_first_delete":
            raise SimulatedCrash(name, 1)

    with pytest.raises(SimulatedCrash), failpoint_handler(die):
        store.compact()
    report = assert_told_the_truth(storage, told)
    kinds = [finding.kind for finding in report.all_findings()]
    assert "old_record" in kinds
    assert dead_records(report) == []


def test_the_same_bytes_that_come_twice_fool_nobody():
    """A put that is sent again after its number was freed does not bring its successor back."""
    storage = MemoryStorage()
    told = prepared(storage)
    sleeper = opened(storage)
    path = f"{NAME}/catalog/{sleeper._catalog.state.head:020}.json"
    data = storage.get(path)  # the open record that the sleeper follows; its first reply was lost
    right = opened(storage)
    for value in range(50, 54):
        commit(right, value, told)
    right.compact()
    storage.put_new(path, data)  # sent again: the digest is the one that the sleeper knows
    with pytest.raises(FencedError):
        commit(sleeper, 3, told)
    assert_told_the_truth(storage, told)


def test_a_record_that_was_replaced_under_a_writer_fences_it():
    """A catalog brought back from a copy, and used by another since, is not this writer's."""
    storage = MemoryStorage()
    told = prepared(storage)
    copy = dict(storage._objects)
    writer = opened(storage)
    commit(writer, 2, told)
    for path in [entry.path for entry in storage.list(NAME)]:
        storage.delete(path)
    for path, data in copy.items():
        storage.put(path, data)
    told.clear()
    other = opened(storage)
    commit(other, 3, told)
    assert other._catalog.state.head == writer._catalog.state.head
    with pytest.raises(FencedError):
        writer.check_alive()
    twin = opened(MemoryStorage())
    assert twin.check_alive() is None
    with pytest.raises(FencedError):
        commit(writer, 4, told)


def test_a_record_that_was_replaced_is_noticed_by_the_commit_itself():
    """Not only when it is asked: the record before is compared by its content."""
    storage = MemoryStorage()
    told = prepared(storage)
    writer = opened(storage)
    path = f"{NAME}/catalog/{writer._catalog.state.head:020}.json"
    other = storage.get(path).replace(b'"at_us":1', b'"at_us":2')
    storage.put(path, other)
    with pytest.raises(FencedError):
        commit(writer, 2, told)


@pytest.mark.parametrize("hint", [True, False])
def test_a_rebuild_that_leaps_over_a_live_writer_takes_its_commits_along(hint):
    """A rebuild far above the catalog fences the writer; what was told before is in the base."""
    for stop in range(1, 200):
        storage = MemoryStorage()
        told = prepared(storage)
        writer = opened(storage)
        commit(writer, 2, told)
        if not hint:
            storage.delete(f"{NAME}/_latest")
        actor = Actor(storage, lambda place: rebuild_catalog(place, NAME, force=True))
        more = actor.run(stop)
        if more:
            with contextlib.suppress(FencedError):
                commit(writer, 3, told)
        actor.run()
        assert not isinstance(actor.answer, BaseException), (stop, actor.answer)
        with pytest.raises(FencedError):
            commit(writer, 4, told)
        assert_told_the_truth(storage, told)
        if not more:
            return
    pytest.fail("the rebuild never ran through undisturbed")


# Real processes

RUNNER = PROGRAMS / "race.py"


def run_race(root, options, *, processes, seconds, seed):
    arguments = {
        "root": str(root), "options": options, "processes": processes, "seconds": seconds,
        "seed": seed,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(RUNNER), json.dumps(arguments)],
        capture_output=True, text=True, timeout=seconds + 240, env=child_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    return json.loads(done.stdout)


def check_race(result, storage):
    assert result["errors"] == [], f"seed {result['seed']}"
    told = [tuple(line) for line in result["told"]]
    assert len(told) > 10
    try:
        assert_told_the_truth(storage, told)
        store = opened(storage)
        commit(store, 10**9, [])
    except (AssertionError, HoldfastError) as error:
        raise AssertionError(f"seed {result['seed']}: {error}") from error
    return {key: result[key] for key in ("fenced", "stopped", "compactions")} | {"done": len(told)}


def test_24_processes_that_are_stopped_and_continued_on_a_disk(ram_path, record_property):
    """Stopped anywhere, with a compaction every eight records: no position is done twice."""
    seconds = 40 if SOAK else 5
    seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(10**6)))
    result = run_race(ram_path, None, processes=24, seconds=seconds, seed=seed)
    figures = check_race(result, open_storage(ram_path))
    assert figures["fenced"] > 0
    assert figures["stopped"] > 0
    record_property("race", json.dumps(figures))


def test_24_processes_that_are_stopped_and_continued_on_s3(true_s3, record_property):
    """The same on a server with real conditional puts."""
    url, options = f"{true_s3.url}/{uuid.uuid4().hex}", true_s3.options
    seconds = 40 if SOAK else 6
    seed = int(os.environ.get("HOLDFAST_SEED", random.SystemRandom().randrange(10**6)))
    result = run_race(url, options, processes=24, seconds=seconds, seed=seed)
    figures = check_race(result, open_storage(url, options=options))
    assert figures["fenced"] > 0
    record_property("race", json.dumps(figures))
