"""The guard without Spark, on checkpoints that a real Spark has left."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import uuid
import zipfile

import pytest

from holdfast.errors import (
    CorruptionError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.guard import clone, compare, gc, ls, pin, restore, save, show, unpin, verify
from holdfast.guard._restore import hadoop_checksums
from holdfast.guard.attach import _parse_every, check_spark_version
from holdfast.guard.checkpoint_location import CheckpointLocation, derived_name
from holdfast.guard.closure import compute, last_committed
from holdfast.guard.spark_files.checksum import _slow as slow_crc
from holdfast.guard.spark_files.layout import classify
from holdfast.guard.spark_files.lz4_blocks import _slow, plain
from holdfast.storage import open_storage
from tests.helpers.guard_golden import EXPECTED, NAMES, contents, fresh_store, in_memory, on_disk
from tests.helpers.paths import child_environment


def _files(storage):
    return {entry.path: storage.get(entry.path) for entry in storage.list("")}


def _python(*arguments):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False,
        env=child_environment(),
    )  # fmt: skip


# What belongs to a batch


@pytest.mark.parametrize("name", NAMES)
def test_closure_is_what_the_last_batch_needs_and_nothing_else(name):
    """Without any one file of the closure it is not complete; everything else may go."""
    location, storage = in_memory(name)
    live = CheckpointLocation.open(location)
    closure = compute(live, live.list(), last_committed(live.list()))
    for entry in list(storage.list("")):
        if entry.path not in closure.files:
            storage.delete(entry.path)
    alone = compute(live, live.list(), closure.batch)
    assert sorted(alone.files) == sorted(closure.files)
    needed = [p for p in closure.files if classify(p).kind not in ("hadoop", "checksum", "schema")]
    for path in needed:
        data = storage.get(path)
        storage.delete(path)
        assert not verify(location).ok, path
        storage.put(path, data)
    assert closure.layout == EXPECTED[name]["layout"]


@pytest.mark.parametrize("name", NAMES)
def test_closure_is_what_the_specification_says_computed_another_way(name):
    """Names alone, by hand: logs, sources, and of each store one unbroken chain to a whole state."""
    location, _ = in_memory(name)
    live = CheckpointLocation.open(location)
    batch = last_committed(live.list())
    found = compute(live, live.list(), batch).files
    files = [path for path in found if not path.endswith(".crc")]
    assert {p for p in files if p.startswith(("offsets/", "commits/"))} == {
        f"offsets/{batch}", f"offsets/{batch - 1}", f"commits/{batch}",
    }  # fmt: skip
    assert {p for p in files if p.startswith("sources/")} == {
        f"sources/{source}/{number}"
        for source in (["0", "1"] if name.startswith("join") else ["0"])
        for number in range(4)
    }
    stores = {}
    for path in files:
        match = re.fullmatch(r"(state/.*)/(\d+)(?:_[0-9a-f-]+)?\.(\w+)", path)
        if match:
            stores.setdefault(match[1], {})[int(match[2])] = (match[3], path)
    assert len(stores) == (4 if name.startswith("join") else 1)
    ssts = set()
    for folder, chain in stores.items():
        versions = sorted(chain)
        assert versions == list(range(versions[0], batch + 2))
        kinds = [chain[version][0] for version in versions]
        assert set(kinds[1:]) <= {"delta", "changelog"}
        assert versions[0] == 1 or kinds[0] in ("snapshot", "zip")
        if kinds[0] == "zip":
            with zipfile.ZipFile(io.BytesIO(contents(name)[chain[versions[0]][1]])) as archive:
                facts = json.loads(archive.read("metadata").split(b"\n", 1)[1])
            ssts |= {f"{folder}/SSTs/{sst['dfsSstFileName']}" for sst in facts["sstFiles"]}
    assert {path for path in files if path.endswith(".sst")} == ssts
    assert set(found) - set(files) == {
        path
        for path in contents(name)
        if path.endswith(".crc") and _covers(path) in {*files, *(f"{f}.crc" for f in files)}
    }


def _covers(path):
    folder, _, name = path.rpartition("/")
    bare = name.removesuffix(".crc").removeprefix(".")
    return f"{folder}/{bare}" if folder else bare


class _Counting(CheckpointLocation):
    """Remembers which files were read."""

    def read(self, path):
        self.__dict__.setdefault("reads", []).append(path)
        return super().read(path)


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("rocksdb2-changelog")])
def test_one_changelog_of_a_store_names_all_before_it(name):
    """The closure of a long chain of changelogs is found by reading the newest of each store."""
    location, _ = in_memory(name)
    with _Counting.open(location) as live:
        listing = live.list()
        closure = compute(live, listing, last_committed(listing))
        read = [path for path in live.reads if path.endswith(".changelog")]
    chains = [
        [path for path in store.files if path.endswith(".changelog")] for store in closure.stores
    ]
    assert max(map(len, chains)) > 1
    assert sorted(read) == sorted(chain[0] for chain in chains if chain)


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_restored_files_are_the_same_bytes(name):
    """A restore into a new location brings back the closure, byte for byte."""
    location, storage = in_memory(name)
    store, into = fresh_store(), fresh_store()
    saved = save(location, store)
    done = restore(location, store, into=into)
    live, back = _files(storage), _files(open_storage(into))
    assert done.files == saved.files == len(back)
    moved = {path for path in back if back[path] != live[path]}
    allowed = {path for path in back if "/_metadata/v2/" in path or "/_metadata/.0.crc" in path}
    assert {path for path in moved if "/_metadata/v2/" not in path} <= allowed
    assert bool(moved) == (name.startswith("custom_state"))
    assert verify(into).ok


@pytest.mark.parametrize("name", [name for name in NAMES if EXPECTED[name]["keys"]])
def test_keys_are_counted_without_a_jvm_as_spark_counts_them(name):
    """The offline count equals what Spark's own state reader has said."""
    if EXPECTED[name]["layout"] != "hdfs":
        pytest.importorskip("rocksdict")
    location, _ = in_memory(name)
    store = fresh_store()
    save(location, store)
    shown = show(location, store)
    assert {entry.store: entry.keys for entry in shown.state} == EXPECTED[name]["keys"]
    assert all(entry.reason == "" for entry in shown.state)


def test_state_that_cannot_be_read_here_says_so(monkeypatch):
    """Without rocksdict, RocksDB state has no count but a reason."""
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    location, _ = in_memory("aggregation-rocksdb1")
    store = fresh_store()
    save(location, store)
    (entry,) = show(location, store).state
    assert entry.keys is None
    assert "rocksdict" in entry.reason


def test_diff_of_two_savepoints_without_a_jvm(tmp_path):
    """Keys of an older and a newer state are compared; the same one has no difference."""
    location, storage = in_memory("aggregation-hdfs")
    store = fresh_store()
    save(location, store, "newer")
    (same,) = compare(location, store, "newer", "newer")
    assert (same.added, same.removed, same.changed) == (0, 0, 0)
    assert same.same == EXPECTED["aggregation-hdfs"]["keys"]["default"]


# Saving again, sharing


def test_nothing_new_means_nothing_copied():
    """A second save of the same batch points at the first one; a label pins it."""
    location, _ = in_memory("join-rocksdb2-changelog")
    store = fresh_store()
    first = save(location, store)
    again = save(location, store, "kept")
    assert again.reused
    assert (again.checkpoint, again.new_bytes) == (first.checkpoint, 0)
    assert ls(location, store)[0].pins == ("kept",)


def _roll_back(storage, batch):
    """The same query one batch earlier, made by hand: what a save then saw."""
    later = {}
    for entry in list(storage.list("")):
        meaning = classify(entry.path)
        number = meaning.batch if meaning.kind in ("offset", "commit") else None
        if number is not None and number > batch:
            later[entry.path] = storage.get(entry.path)
    for path in later:
        storage.delete(path)
        beside = path.rsplit("/", 1)[0] + "/." + path.rsplit("/", 1)[1] + ".crc"
        storage.delete(beside)
    return later


def test_savepoints_share_unchanged_files_and_copy_only_what_changed():
    """The next batch's savepoint copies its own files, not what the one before holds."""
    location, storage = in_memory("aggregation-hdfs")
    store = fresh_store()
    last = last_committed(CheckpointLocation.open(location).list())
    whole = _files(storage)
    _roll_back(storage, last - 1)
    first = save(location, store)
    for path, data in whole.items():
        if not storage.exists(path):
            storage.put(path, data)
    second = save(location, store)
    assert (first.batch, second.batch) == (last - 1, last)
    assert 0 < second.new_files < second.files
    assert second.new_bytes < second.bytes
    assert [entry.batch for entry in ls(location, store)] == [last, last - 1]
    for batch in (last - 1, last):
        into = fresh_store()
        restore(location, store, batch, into=into)
        assert verify(into).batch == batch
    (change,) = compare(location, store, last - 1, last)
    assert change.reason == ""


def test_a_retried_task_that_reuses_a_file_name_is_saved_by_its_content(tmp_path):
    """Same name, same size, other bytes: the next savepoint holds the new ones, the first the old."""
    location, store = on_disk("aggregation-hdfs", tmp_path / "ck"), tmp_path / "store"
    last = last_committed(CheckpointLocation.open(location).list())
    later = _roll_back(open_storage(location), last - 1)
    save(location, store, "first")
    with CheckpointLocation.open(location) as live:
        shared = compute(live, live.list(), last - 1).files
    victim = next(path for path in reversed(shared) if path.endswith((".delta", ".snapshot")))
    old = (location / victim).read_bytes()
    new = old[:-30] + bytes([old[-30] ^ 1]) + old[-29:]
    (location / victim).write_bytes(new)
    folder, _, name = victim.rpartition("/")
    (location / folder / f".{name}.crc").write_bytes(hadoop_checksums(new))
    for path, data in later.items():
        (location / path).write_bytes(data)
    save(location, store, "second")
    for label, expected in (("first", old), ("second", new)):
        done = restore(location, store, label, into=tmp_path / label)
        path = tmp_path / label / victim
        assert done.batch == (last - 1 if label == "first" else last)
        assert path.read_bytes() == expected


def test_behind_the_last_savepoint_is_refused():
    """A checkpoint that was rolled back by hand is not saved over its own history."""
    location, storage = in_memory("aggregation-hdfs")
    store = fresh_store()
    last = save(location, store).batch
    _roll_back(storage, last - 1)
    with pytest.raises(RefusedError, match="behind"):
        save(location, store)
    report = verify(location, store)
    assert "behind_savepoint" in {finding.kind for finding in report.findings}


def test_another_query_is_never_saved_among_the_savepoints_of_the_first():
    """The query id is part of what the core compares."""
    location, storage = in_memory("aggregation-hdfs")
    store = fresh_store()
    save(location, store)
    old = json.loads(storage.get("metadata"))["id"]
    new = str(uuid.UUID(int=1))
    storage.put("metadata", storage.get("metadata").replace(old.encode(), new.encode()))
    storage.put(".metadata.crc", hadoop_checksums(storage.get("metadata")))
    with pytest.raises(IncompatibleError, match="query"):
        save(location, store)
    assert "query_differs" in {finding.kind for finding in verify(location, store).findings}


def test_old_savepoints_are_collected_and_pinned_ones_stay():
    """gc keeps the newest and the pinned; what others share survives."""
    location, storage = in_memory("aggregation-hdfs")
    store = fresh_store()
    whole = _files(storage)
    last = last_committed(CheckpointLocation.open(location).list())
    _roll_back(storage, last - 1)
    save(location, store, "first")
    for path, data in whole.items():
        storage.put(path, data)
    save(location, store)
    assert gc(location, store, keep=2, dry_run=True).dropped == ()
    pin(location, store, "second", last)
    unpin(location, store, "first")
    gc(location, store, keep=2)
    assert [entry.pins for entry in ls(location, store)] == [("second",), ()]
    assert verify(location, store).ok


@pytest.mark.parametrize("name", ["aggregation-rocksdb2-changelog", "join-rocksdb2-changelog"])
@pytest.mark.parametrize("place", ["disk", "memory"])
def test_large_files_get_blobs_of_their_own_and_are_streamed(name, place, tmp_path, monkeypatch):
    """With tiny limits every file takes the path of large ones; the bytes are the same."""
    monkeypatch.setattr("holdfast.guard.checkpoint_location._SMALL_FILE_BYTES", 300)
    monkeypatch.setattr("holdfast.guard.checkpoint_location._CHUNK_BYTES", 700)
    monkeypatch.setattr("holdfast.guard._save._CHUNK_BYTES", 700)
    monkeypatch.setattr("holdfast.guard.savepoints._GATHER_BYTES_MAX", 900)
    monkeypatch.setattr("holdfast.guard._verify._LARGE_BYTES", 500)
    if place == "disk":
        location, store, into = on_disk(name, tmp_path / "ck"), tmp_path / "store", tmp_path / "new"
    else:
        (location, _), store, into = in_memory(name), fresh_store(), fresh_store()
    saved = save(location, store)
    assert len(open_blobs(store)) >= 3
    assert verify(location, store).ok
    restore(location, store, into=into)
    assert verify(into).ok
    original = contents(name)
    back = _files(open_storage(into))
    assert len(back) == saved.files
    assert back == {path: original[path] for path in back}
    assert save(location, store).reused


def test_damage_in_a_large_file_is_never_saved(monkeypatch):
    """An SST that disagrees with the checksum beside it is refused while it is being copied."""
    monkeypatch.setattr("holdfast.guard.checkpoint_location._SMALL_FILE_BYTES", 300)
    location, storage = in_memory("aggregation-rocksdb1")
    store = fresh_store()
    live = CheckpointLocation.open(location)
    files = compute(live, live.list(), last_committed(live.list())).files
    victim = next(path for path in files if path.endswith(".sst"))
    data = bytearray(storage.get(victim))
    data[-1] ^= 1
    storage.put(victim, bytes(data))
    with pytest.raises(CorruptionError, match="checksum"):
        save(location, store)
    assert ls(location, store) == []


def open_blobs(store):
    return [e.path for e in open_storage(store).list("") if "/blob-" in e.path]


def test_a_dry_run_of_gc_writes_nothing():
    """What would go is said from reading alone."""
    location, _ = in_memory("aggregation-hdfs")
    store = fresh_store()
    save(location, store)
    before = _files(open_storage(store))
    assert gc(location, store, keep=2, dry_run=True).dry_run
    assert _files(open_storage(store)) == before


def test_checkpoint_and_store_in_an_object_store(s3_url, s3_options):
    """The same over S3: save, verify, restore into a new prefix; in place is refused."""
    location, store, into = f"{s3_url}/ck", f"{s3_url}/store", f"{s3_url}/new"
    live = open_storage(location, options=s3_options)
    for path, data in contents("aggregation-hdfs").items():
        live.put(path, data)
    saved = save(location, store, options=s3_options)
    assert save(location, store, options=s3_options).reused
    assert verify(location, store, options=s3_options).ok
    done = restore(location, store, into=into, options=s3_options)
    assert done.files == saved.files
    assert verify(into, options=s3_options).ok
    with pytest.raises(RefusedError, match="rename"):
        restore(location, store, options=s3_options)


# Retrying


class _Racing:
    """Storage that lets the query go on after some reads, as a running one does."""

    def __init__(self, inner, act):
        self._inner = inner
        self._act = act
        self._reads = 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def get(self, path, *, bytes_max=None):
        self._reads += 1
        self._act(self._reads)
        return self._inner.get(path, bytes_max=bytes_max)


@pytest.mark.parametrize("moment", range(2, 30, 3))
def test_a_query_that_moves_on_meanwhile_leads_to_another_batch_never_to_a_mixture(
    moment, monkeypatch
):
    """At whatever read the next batch comes and the old one goes, one whole batch is saved."""
    location, storage = in_memory("aggregation-hdfs")
    store, into = fresh_store(), fresh_store()
    last = last_committed(CheckpointLocation.open(location).list())
    later = _roll_back(storage, last - 1)

    def act(reads):
        if reads == moment:
            for path, data in later.items():
                storage.put(path, data)
            for number in range(last):
                storage.delete(f"offsets/{number - 1}")
                storage.delete(f"commits/{number}")

    opened = CheckpointLocation.open

    def racing(where, *, options=None):
        live = opened(where, options=options)
        if str(where) == location:
            live.storage = _Racing(live.storage, act)
        return live

    monkeypatch.setattr(CheckpointLocation, "open", staticmethod(racing))
    saved = save(location, store)
    monkeypatch.setattr(CheckpointLocation, "open", opened)
    assert saved.batch in (last - 1, last)
    restore(location, store, into=into)
    assert verify(into).ok
    assert verify(into).batch == saved.batch


def test_a_batch_whose_state_is_gone_already_is_never_saved_half(monkeypatch):
    """While the newest commit's files are incomplete, a save waits for the next batch."""
    location, storage = in_memory("aggregation-rocksdb1")
    store = fresh_store()
    live = CheckpointLocation.open(location)
    last = last_committed(live.list())
    newer = compute(live, live.list(), last).files
    whole = _files(storage)
    _roll_back(storage, last - 1)
    older = compute(live, live.list(), last - 1).files
    gone = next(path for path in older if path.endswith(".zip") and path not in newer)
    storage.delete(gone)
    slept = []

    def arrives(_, duration_ms):
        slept.append(duration_ms)
        if len(slept) == 3:
            for path in newer:
                storage.put(path, whole[path])

    monkeypatch.setattr("holdfast.clock.SystemClock.sleep_ms", arrives)
    saved = save(location, store)
    assert (saved.batch, saved.tries) == (last, 4)


def _saved_before_its_snapshot(name):
    """A savepoint of the last batch by its changes, and what a later snapshot makes unneeded."""
    location, storage = in_memory(name)
    store = fresh_store()
    live = CheckpointLocation.open(location)
    last = last_committed(live.list())
    needed = set(compute(live, live.list(), last).files)
    snapshot = next(path for path in needed if path.endswith((".snapshot", ".zip")))
    data = storage.get(snapshot)
    storage.delete(snapshot)
    assert save(location, store).batch == last
    storage.put(snapshot, data)
    state = [e.path for e in storage.list("state") if e.path not in needed]
    assert state
    return location, storage, store, sorted(needed), state


@pytest.mark.parametrize("name", ["aggregation-hdfs", "aggregation-rocksdb2-changelog"])
def test_what_a_later_snapshot_replaces_is_not_missed(name):
    """Spark makes a snapshot of the saved batch and deletes what it replaces: nothing is lost."""
    location, storage, store, needed, replaced = _saved_before_its_snapshot(name)
    for path in replaced:
        storage.delete(path)
    assert verify(location, store).ok
    gone = next(p for p in needed if p.startswith("state/") and not p.endswith(".crc"))
    storage.delete(gone)
    assert not verify(location, store).ok


@pytest.mark.parametrize("name", ["aggregation-hdfs", "aggregation-rocksdb2-changelog"])
def test_files_that_go_while_they_are_verified_are_looked_for_again(name, monkeypatch):
    """Spark cleans up for a while after a query has stopped; what vanishes meanwhile is no damage."""
    location, storage, store, needed, replaced = _saved_before_its_snapshot(name)
    read = CheckpointLocation.read

    def late(live, path):
        if path in replaced:  # between the listing and this moment
            storage.delete(path)
        return read(live, path)

    monkeypatch.setattr(CheckpointLocation, "read", late)
    report = verify(location, store)
    assert report.ok, [str(finding) for finding in report.findings]


def test_a_checkpoint_that_is_never_complete_ends_in_an_error_not_a_savepoint(monkeypatch):
    """A missing delta is retried and then named."""
    monkeypatch.setattr("holdfast.clock.SystemClock.sleep_ms", lambda *_: None)
    location, storage = in_memory("aggregation-hdfs")
    store = fresh_store()
    newest = max(
        (e.path for e in storage.list("state") if e.path.endswith(".delta")),
        key=lambda path: int(path.rsplit("/", 1)[1].split(".")[0]),
    )
    storage.delete(newest)
    with pytest.raises(StorageError) as caught:
        save(location, store)
    assert caught.value.facts["path"] == newest
    with pytest.raises(NotFoundError, match="no pipeline"):
        ls(location, store)


def test_damage_is_never_saved():
    """New bytes that disagree with the checksum beside them are refused."""
    location, storage = in_memory("aggregation-rocksdb2-changelog")
    store = fresh_store()
    last = last_committed(CheckpointLocation.open(location).list())
    data = storage.get(f"offsets/{last}")
    storage.put(f"offsets/{last}", data.replace(b'"batchWatermarkMs":1', b'"batchWatermarkMs":2'))
    with pytest.raises(CorruptionError, match="checksum"):
        save(location, store)
    with pytest.raises(NotFoundError, match="no pipeline"):
        ls(location, store)


# Refusing


def test_unknown_layouts_are_refused_not_guessed():
    """A file that Spark 4.3 does not write here, or a document of a newer version, is refused."""
    location, storage = in_memory("aggregation-hdfs")
    storage.put("epochs/0", b"v1")
    with pytest.raises(IncompatibleError, match="epochs/0"):
        save(location, fresh_store())
    assert "unknown_layout" in {finding.kind for finding in verify(location).findings}
    location, storage = in_memory("aggregation-hdfs")
    last = last_committed(CheckpointLocation.open(location).list())
    commit = storage.get(f"commits/{last}")
    storage.put(f"commits/{last}", b"v9" + commit[2:])
    storage.delete(f"commits/.{last}.crc")
    with pytest.raises(IncompatibleError, match="v9"):
        save(location, fresh_store())


def test_unknown_state_provider_is_refused():
    """State of a provider that is not Spark's own is not copied on a guess."""
    location, storage = in_memory("aggregation-hdfs")
    last = last_committed(CheckpointLocation.open(location).list())
    data = storage.get(f"offsets/{last}").replace(b"HDFSBackedStateStore", b"SomeOtherStateStore")
    storage.put(f"offsets/{last}", data)
    storage.delete(f"offsets/.{last}.crc")
    with pytest.raises(IncompatibleError, match="SomeOtherStateStore"):
        save(location, fresh_store())


def test_unsupported_spark_versions_are_refused():
    """Only versions whose checkpoints were looked at."""

    class Session:
        version = "3.5.1"

    with pytest.raises(IncompatibleError, match=r"3\.5\.1"):
        check_spark_version(Session())
    Session.version = "4.3.0"
    check_spark_version(Session())


def test_a_lost_checkpoint_is_not_a_fresh_start():
    """When savepoints exist and the location is gone or empty, that is an error."""
    location, storage = in_memory("aggregation-hdfs")
    store = fresh_store()
    save(location, store)
    for entry in list(storage.list("")):
        storage.delete(entry.path)
    assert [f.kind for f in verify(location, store).findings if f.severity == "error"] == [
        "checkpoint_gone"
    ]
    assert verify(fresh_store()).ok


def test_restore_never_writes_into_a_location_that_is_in_use(tmp_path):
    """A target with anything in it is refused, and so is a clone onto its original."""
    location = on_disk("aggregation-hdfs", tmp_path / "ck")
    store = tmp_path / "store"
    save(location, store)
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "x").write_text("x")
    with pytest.raises(RefusedError, match="not empty"):
        restore(location, store, into=tmp_path / "busy")
    with pytest.raises(InvalidInputError):
        clone(location, store, location)
    with pytest.raises(NotFoundError):
        restore(location, store, 999, into=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_damaged_savepoint_is_not_restored(tmp_path):
    """The old checkpoint stays where it is when the savepoint turns out to be damaged."""
    location = on_disk("aggregation-hdfs", tmp_path / "ck")
    store = tmp_path / "store"
    save(location, store)
    before = {p: p.read_bytes() for p in location.rglob("*") if p.is_file()}
    (blob,) = store.rglob("blob-*.bin")
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with pytest.raises(CorruptionError):
        restore(location, store)
    assert {p: p.read_bytes() for p in location.rglob("*") if p.is_file()} == before


# Parts


def test_own_lz4_and_crc_agree_with_others():
    """The plain Python decoders give what pyarrow and google-crc32c give."""
    arrow = pytest.importorskip("pyarrow")
    google = pytest.importorskip("google_crc32c")
    import struct

    checked = 0
    for path, data in contents("aggregation-hdfs").items():
        assert slow_crc(data) == google.value(data)
        if path.endswith((".delta", ".snapshot")) and not path.rsplit("/", 1)[1].startswith("."):
            packed, size = struct.unpack_from("<ii", data, 9)
            chunk = data[21 : 21 + packed]
            if data[8] & 0xF0 == 0x20:
                other = arrow.decompress(
                    chunk, decompressed_size=size, codec="lz4_raw", asbytes=True
                )
                assert _slow(chunk) == other == plain(data, path)[:size]
                checked += 1
    assert checked > 0


def test_intervals_of_attach():
    """Batches, text and time; nonsense is refused."""
    from datetime import timedelta

    assert _parse_every(10) == (10, 0)
    assert _parse_every("3 batches") == (3, 0)
    assert _parse_every("5 minutes") == (0, 300_000)
    assert _parse_every(timedelta(milliseconds=1500)) == (0, 1500)
    for bad in (0, -1, "often", "0 minutes", timedelta(0)):
        with pytest.raises(InvalidInputError):
            _parse_every(bad)


def test_names_are_derived_from_the_location_in_one_spelling(tmp_path):
    """The same place has the same name however it is written; two places never share one."""
    here = tmp_path / "orders"
    assert derived_name(here) == derived_name(f"file://{here}") == derived_name(f"file:{here}/")
    assert derived_name("s3a://bucket/ck/orders") == derived_name("s3://bucket/ck/orders/")
    assert derived_name("s3://bucket/a/orders") != derived_name("s3://bucket/b/orders")
    assert derived_name(here).startswith("orders-")


def test_offline_use_imports_neither_pyspark_nor_click(tmp_path):
    """`import holdfast` stays light, and so does the guard without its command line."""
    code = (
        "import sys, holdfast as hf; assert 'holdfast.guard' not in sys.modules; hf.guard.save; "
        "print(sorted({'pyspark','click','pyarrow','numpy','rocksdict'} & set(sys.modules)))"
    )
    done = _python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def test_command_line_speaks_json_and_exit_codes(tmp_path):
    """0 good, 1 problem found, 2 usage; every read verb has --json."""
    pytest.importorskip("click")
    location, store = str(on_disk("join-hdfs", tmp_path / "ck")), str(tmp_path / "store")
    done = _python("-m", "holdfast", "guard", "save", location, store, "--label", "one", "--json")
    assert done.returncode == 0, done.stderr
    saved = json.loads(done.stdout)
    assert saved["schema"] == "holdfast.guard.save/1"
    for verb in ("ls", "show", "verify"):
        done = _python("-m", "holdfast", "guard", verb, location, store, "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["schema"] == f"holdfast.guard.{verb}/1"
        assert verb != "ls" or [item["label"] for item in document["items"]] == ["one"]
    done = _python("-m", "holdfast", "guard", "restore", location, store, "--to", "one")
    assert done.returncode == 0, done.stderr
    assert "kept at" in done.stdout
    assert "stays published" in done.stdout
    victim = tmp_path / "ck" / "commits" / str(saved["batch"])
    victim.write_bytes(victim.read_bytes().replace(b"nextBatch", b"nextBatcH"))
    done = _python("-m", "holdfast", "guard", "verify", location, store)
    assert done.returncode == 1
    assert f"commits/{saved['batch']}" in done.stdout
    assert _python("-m", "holdfast", "guard", "restore", location).returncode == 2
    assert _python("-m", "holdfast", "guard", "pin", location, store, "a/b").returncode == 2
