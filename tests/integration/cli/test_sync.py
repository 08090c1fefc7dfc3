"""Sync: only what is missing, verified, resumable, and a valid store at every moment."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest

import holdfast as hf
from holdfast.checkpoint.replication.sync import sync_pipeline
from holdfast.errors import ConflictError, CorruptionError, RefusedError
from holdfast.storage import MemoryStorage
from holdfast.testing.wrapped_storage import WRITES, WrappedStorage
from tests.helpers.cli_world import World, call, damage, environment, holdfast, standard

TOPOLOGY = hf.checkpoint.topology(
    hf.checkpoint.Part(name="in", kind="source", what="counter"),
    hf.checkpoint.Part(name="op", kind="operator", what="sum", inputs=["in"], stateful=True),
    hf.checkpoint.Part(name="out", kind="sink", what="memory", inputs=["op"]),
)


def commit(store, count=1, size=100, settle=True):
    """Checkpoints with one run each, on top of what is there."""
    for _ in range(count):
        draft = store.draft()
        first = store.current is None
        data = hashlib.sha256(b"%d" % draft.epoch).digest() * (size // 32 + 1)
        run = draft.write_run("op", 0, data, snapshot=first, rows=1)
        if first:
            draft.set_operator("op", trace="latest", files=[run], rows=1, keys=1)
        else:
            draft.add_file(run)
        draft.set_source("in", hf.checkpoint.CounterPosition(partitions={"0": draft.epoch + 1}))
        draft.stage_sink("out", f"t{draft.epoch}", replay="deduplicates")
        summary = store.commit(draft)
        if settle:
            store.record_outcome(summary.checkpoint, "out", "committed")


def opened(storage, name="p", **more):
    settings = hf.Settings(retain=100, base_every_min=more.pop("base_every_min", 64))
    return hf.checkpoint.open_store(storage, name, topology=TOPOLOGY, settings=settings, **more)


def grow(storage, count=1, name="p", **more):
    with opened(storage, name, **more) as store:
        commit(store, count)


def told(storage, name="p"):
    """Everything that a replica must have in common with its source."""
    reader = hf.checkpoint.read_store(storage, name)
    outcomes = reader.outcomes()
    return {
        "live": reader.list(),
        "pins": sorted((p.label, p.checkpoint) for p in reader.pins()),
        "status": {s.checkpoint: outcomes.status(s.checkpoint, "out") for s in reader.list()},
        "files": {
            reader.directory.file(e): storage.get(reader.directory.file(e))
            for s in reader.list()
            for e in reader.manifest(s).files
        },
        "epoch_max": reader.catalog().epoch_max,
    }


def check_valid(storage, name="p"):
    """A destination that exists is a store without a single error."""
    if name in hf.checkpoint.list_pipelines(storage, damaged=True):
        report = hf.checkpoint.verify_store(hf.checkpoint.read_store(storage, name), deep=True)
        assert report.ok, [str(f) for f in report.all_findings()]
        hf.checkpoint.recovery_plan(storage, name)


def test_disk_to_s3_and_back_is_the_same_store(world, s3_url, s3_env, s3_options, tmp_path):
    """A pipeline goes to S3 and comes back to an empty disk with every row, label and outcome."""
    call("pin", world.address, "hold", "epoch:1")
    out = holdfast("sync", world.address, s3_url, "--json", env=s3_env)
    assert out.code == 0, out.err
    assert out.json["pipelines"][0]["new_checkpoints"] == 4
    back = holdfast("sync", f"{s3_url}/orders", tmp_path / "back", "--json", env=s3_env)
    assert back.code == 0, back.err
    there = World(s3_url, options=s3_options)
    again = World(tmp_path / "back")
    assert told(there.storage, "orders") == told(world.storage, "orders")
    assert told(again.storage, "orders") == told(world.storage, "orders")
    for each in (there, again):
        check_valid(each.storage, "orders")
    rows = call("state", again.address, "totals", "--limit", 0, "--json").json["rows"]
    assert {r[0]: (r[1], r[2]) for r in rows} == world.truth[world.ids[-1]]
    again.truth = dict(world.truth)
    again.grow({"goes-on": 1})
    assert call("ls", again.address, "--json").json["checkpoints"][0]["epoch"] == 4


def test_only_what_is_missing_is_copied(world, tmp_path):
    """A second sync copies nothing; after one more epoch it copies that epoch's files alone."""
    target = tmp_path / "dst"
    first = call("sync", world.address, target, "--json").json["pipelines"][0]
    assert first["files_present"] == 0
    second = call("sync", world.address, target, "--json").json["pipelines"][0]
    assert (second["files_copied"], second["up_to_date"]) == (0, True)
    world.grow({"c1": 5})
    manifest = world.reader.manifest("latest")
    new = [f for f in manifest.files if f.path.startswith(manifest.own_prefix())]
    third = call("sync", world.address, target, "--json").json["pipelines"][0]
    assert (third["files_copied"], third["bytes_copied"]) == (len(new), sum(f.size for f in new))
    assert third["files_present"] == len(manifest.files) - len(new)
    assert told(hf.checkpoint.open_storage(target), "orders") == told(world.storage, "orders")


class Dies(WrappedStorage):
    """Ends with the n-th operation that changes something, before or after it took effect."""

    def __init__(self, inner, nth, *, after):
        super().__init__(inner)
        self.left, self.after = nth, after

    def around(self, operation, path, call, size=0):
        if operation not in WRITES:
            return call()
        self.left -= 1
        if self.left == 0 and not self.after:
            raise KeyboardInterrupt
        result = call()
        if self.left == 0:
            raise KeyboardInterrupt
        return result


def _source():
    """A source whose tail drops checkpoints that a replica has, and one that it never saw."""
    source = MemoryStorage("src")
    grow(source, 3)
    first = MemoryStorage("first")
    sync_pipeline(source, first, "p")
    with opened(source) as store:
        store.pin("hold", "epoch:1")
        commit(store, 3)
        store.delete("epoch:3")
        store.delete("epoch:0")
    return source, first


def _copy(storage):
    other = MemoryStorage("copy")
    for entry in storage.list(""):
        other.put(entry.path, storage.get(entry.path))
    return other


@pytest.mark.parametrize("begin", ["empty", "replica"])
def test_death_at_any_write_leaves_a_valid_store_and_the_next_sync_finishes(begin):
    """Whatever write is the last one, the destination verifies deeply, lists the old state or the
    new one, and syncing again makes it equal to the source."""
    source, first = _source()
    old = [] if begin == "empty" else hf.checkpoint.read_store(first, "p").list()
    states = [old, hf.checkpoint.read_store(source, "p").list()]
    nth, finished = 0, False
    while not finished:
        nth += 1
        for after in (False, True):
            target = MemoryStorage("dst") if begin == "empty" else _copy(first)
            try:
                sync_pipeline(source, Dies(target, nth, after=after), "p")
                finished = True
            except KeyboardInterrupt:
                pass
            check_valid(target)
            if "p" in hf.checkpoint.list_pipelines(target):
                assert hf.checkpoint.read_store(target, "p").list() in states, nth
            sync_pipeline(source, target, "p")
            assert told(target) == told(source)
            check_valid(target)
    assert nth > 15


def test_kill_9_at_random_moments_and_again_until_it_is_done(tmp_path):
    """A sync process that is killed again and again leaves a valid store each time, and in the end
    the destination equals the source."""
    seed = int(os.environ.get("HOLDFAST_SEED", "7"))
    chance = random.Random(seed)
    source = hf.checkpoint.open_storage(tmp_path / "src")
    with opened(source) as store:
        commit(store, 6, size=3_000_000)
    target = tmp_path / "dst"
    line = [sys.executable, "-m", "holdfast", "sync", str(tmp_path / "src"), str(target)]
    killed = 0
    for _ in range(6):
        process = subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)  # fmt: skip
        limit = time.perf_counter() + 20
        while not any(target.rglob("*.snap")) and time.perf_counter() < limit:
            if process.poll() is not None:
                break
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.12))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        if target.exists():
            check_valid(hf.checkpoint.open_storage(target))
    done = holdfast("sync", tmp_path / "src", target, "--json")
    assert done.code == 0, (seed, done.err)
    assert told(hf.checkpoint.open_storage(target)) == told(source), seed
    assert killed > 0, seed


def test_what_a_crash_left_is_hashed_before_it_is_believed(tmp_path):
    """A file of the right size and wrong content, left by an interrupted sync, is replaced; so is a
    short one."""
    source, target = (
        hf.checkpoint.open_storage(tmp_path / "src"),
        hf.checkpoint.open_storage(tmp_path / "dst"),
    )
    grow(source, 2)
    manifest = hf.checkpoint.read_store(source, "p").manifest("latest")
    for entry, data in zip(manifest.files, (b"\0" * manifest.files[0].size, b"short"), strict=True):
        with target.create(f"p/{entry.path}") as writer:
            writer.write(data)
    target.put_new("p/holdfast.json", source.get("p/holdfast.json"))
    from holdfast.checkpoint.replication.history import first_record

    record = first_record(hf.checkpoint.read_store(source, "p"))
    target.put_new(f"p/catalog/{record.sequence:020d}.json", record.data)
    sync_pipeline(source, target, "p")
    assert told(target) == told(source)


def test_drops_and_pins_follow(tmp_path):
    """Checkpoints that the source dropped leave the replica with their files; labels follow."""
    source, target = MemoryStorage("s"), MemoryStorage("d")
    with opened(source) as store:
        commit(store, 4)
        store.pin("a", "epoch:1")
        sync_pipeline(source, target, "p")
        store.unpin("a")
        store.pin("a", "epoch:3")
        store.delete("epoch:1")
        commit(store, 1)
    sync_pipeline(source, target, "p")
    assert told(target)["pins"] == told(source)["pins"]
    check_valid(target)
    grow(source, 1)  # what only the old label held goes with the next sync
    sync_pipeline(source, target, "p")
    assert told(target) == told(source)


def test_a_savepoint_that_only_the_destination_has_is_kept_unless_pruned():
    """Its checkpoint stays there although the source has dropped it; --prune lets it go."""
    source, target = MemoryStorage("s"), MemoryStorage("d")
    with opened(source) as store:
        commit(store, 3)
        sync_pipeline(source, target, "p")
        hf.checkpoint.pins.pin(hf.checkpoint.read_store(target, "p"), target, hf.clock.SystemClock(),
                               label="mine", ref="epoch:0")  # fmt: skip
        store.delete("epoch:0")
        commit(store, 1)
        report = sync_pipeline(source, target, "p")
        assert report.pins_only_there == ("mine",)
        assert 0 in [s.epoch for s in hf.checkpoint.read_store(target, "p").list()]
        check_valid(target)
        commit(store, 1)
        sync_pipeline(source, target, "p", prune=True)
        commit(store, 1)
        sync_pipeline(source, target, "p")
    assert told(target) == told(source)
    check_valid(target)


@pytest.mark.parametrize("commits", [0, 1])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_destination_that_went_its_own_way_is_refused(compacted, commits):
    """Once somebody has opened the replica for writing, it is not overwritten, even when the source
    has compacted its history meanwhile; nothing there changes."""
    source, target = MemoryStorage("s"), MemoryStorage("d")
    grow(source, 2)
    sync_pipeline(source, target, "p")
    grow(target, commits)
    with opened(source) as store:
        commit(store, 5)
        if compacted:
            store.compact()
    before = told(target)
    with pytest.raises(ConflictError, match="written to by itself"):
        sync_pipeline(source, target, "p")
    assert told(target) == before
    assert call("sync", "/nonexistent/a", "/nonexistent/b").code == 2


def test_another_pipeline_of_the_same_name_is_refused(world, tmp_path):
    """A destination with another lineage is never touched; exit 1 says so."""
    other = standard(tmp_path / "other")
    before = told(other.storage, "orders")
    answer = holdfast("sync", world.address, other.root)
    assert answer.code == 1
    assert "another pipeline of the same name" in answer.err
    assert told(other.storage, "orders") == before


def test_failing_over_and_coming_home():
    """The replica is opened and goes on; syncing back brings the first store to where it stands."""
    home, away = MemoryStorage("home"), MemoryStorage("away")
    grow(home, 3)
    sync_pipeline(home, away, "p")
    assert sync_pipeline(away, home, "p").up_to_date
    grow(away, 2)
    report = sync_pipeline(away, home, "p")
    assert report.new_checkpoints == 2
    assert told(home) == told(away)
    grow(home, 1)
    sync_pipeline(home, away, "p")
    assert told(home) == told(away)
    for each in (home, away):
        check_valid(each)


def test_a_replica_of_a_replica_is_a_replica_of_the_first():
    """A to B to C, and then A to C directly."""
    a, b, c = (MemoryStorage(name) for name in "abc")
    grow(a, 2)
    sync_pipeline(a, b, "p")
    sync_pipeline(b, c, "p")
    assert told(c) == told(a)
    grow(a, 1)
    sync_pipeline(a, c, "p")
    assert told(c) == told(a)
    check_valid(c)


def test_the_source_may_compact_and_be_written_to_meanwhile():
    """Compactions between syncs and a writer that holds the source do not matter."""
    source, target = MemoryStorage("s"), MemoryStorage("d")
    with opened(source) as store:
        for _ in range(4):
            commit(store, 2)
            store.compact()
            commit(store, 1)
            sync_pipeline(source, target, "p")
            assert told(target) == told(source)
            check_valid(target)


def test_a_damaged_source_is_not_copied(tmp_path):
    """A flipped bit at the source stops the sync with the file's name; nothing of it is published,
    and the destination stays what it was."""
    world = standard(tmp_path / "src")
    target = tmp_path / "dst"
    call("sync", world.address, target)
    before = told(hf.checkpoint.open_storage(target), "orders")
    world.grow({"c9": 9})
    file = world.file_of(f"checkpoints/{world.ids[-1]}/operators/totals/*")
    damage(file)
    answer = holdfast("sync", world.address, target)
    assert answer.code == 1
    assert file.name in answer.err
    assert told(hf.checkpoint.open_storage(target), "orders") == before
    check_valid(hf.checkpoint.open_storage(target), "orders")
    damage(file, "remove")
    with pytest.raises(CorruptionError, match="missing"):
        sync_pipeline(world.storage, hf.checkpoint.open_storage(target), "orders")


def test_what_arrives_damaged_is_not_published():
    """A destination that stores other bytes than were sent is noticed before the record."""

    class Lies(MemoryStorage):
        def get_range(self, path, start, length):
            data = super().get_range(path, start, length)
            return b"\x01" + data[1:] if path.endswith(".snap") else data

    source, target = MemoryStorage("s"), Lies("d")
    grow(source, 1)
    with pytest.raises(CorruptionError, match="arrived"):
        sync_pipeline(source, target, "p")
    assert hf.checkpoint.read_store(target, "p").list() == []


def test_deep_sync_heals_a_replica(world, tmp_path):
    """`--deep` hashes everything at the destination again and replaces what has rotted."""
    target = tmp_path / "dst"
    call("sync", world.address, target)
    replica = World(target)
    damage(replica.file_of("checkpoints/*/operators/totals/*.snap"))
    assert call("verify", "--deep", replica.address).code == 1
    assert call("sync", "--deep", world.address, target).code == 0
    assert call("verify", "--deep", replica.address).code == 0


def test_a_root_with_a_fork_is_synced_in_the_right_order(world, tmp_path):
    """All pipelines of a root come over, an origin before its fork; the fork alone is refused."""
    call("fork", world.address, "epoch:1", "a-fork")
    alone = call("sync", f"{world.root}/a-fork", tmp_path / "one")
    assert alone.code == 1
    assert "sync orders first" in alone.err
    both = holdfast("sync", world.root, tmp_path / "two", "--json")
    assert both.code == 0, both.err
    assert {p["pipeline"] for p in both.json["pipelines"]} == {"orders", "a-fork"}
    for name in ("orders", "a-fork"):
        check_valid(hf.checkpoint.open_storage(tmp_path / "two"), name)


def test_a_store_is_not_synced_with_itself(world):
    """Source and destination must differ."""
    with pytest.raises(RefusedError, match="same store"):
        sync_pipeline(world.storage, world.storage, "orders")
    assert call("sync", world.root, world.root).code == 1


def test_a_locked_destination_is_refused(world, tmp_path):
    """While a process has the replica open for writing, a sync says who and changes nothing."""
    target = tmp_path / "dst"
    call("sync", world.address, target)
    replica = World(target)
    replica.open()
    answer = holdfast("sync", world.address, target)
    assert answer.code == 1
    assert str(os.getpid()) in answer.err
    replica.close()
