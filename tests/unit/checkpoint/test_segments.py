"""Long inventories lie in shared segments, and everybody who reads an inventory knows them."""

from __future__ import annotations

import time
from unittest import mock

import msgspec
import pytest

from holdfast import Settings
from holdfast.checkpoint import (
    CounterPosition,
    Part,
    footprints,
    open_store,
    read_store,
    rebuild_catalog,
    topology,
    verify_store,
)
from holdfast.checkpoint.replication.fork import fork_pipeline
from holdfast.checkpoint.replication.sync import sync_pipeline
from holdfast.checkpoint.segments import arrange
from holdfast.errors import CorruptionError, InternalError
from holdfast.format.inventory import FileEntry, Segment, SegmentEntry, SharedPart
from holdfast.format.manifest import (
    manifest_bytes,
    parse_manifest,
    with_segments,
)
from holdfast.format.paths import manifest as manifest_path
from holdfast.format.validate import validate
from holdfast.storage import MemoryStorage

SHAPE = topology(
    Part(name="in", kind="source", what="counter"),
    Part(name="op", kind="operator", what="x", inputs=["in"], stateful=True),
)


@pytest.fixture
def small(monkeypatch):
    """Segments of at most three files as soon as more than two would be listed."""
    monkeypatch.setattr("holdfast.checkpoint.segments.LISTED_MAX", 2)
    monkeypatch.setattr("holdfast.checkpoint.segments.SEGMENT_FILES", 3)


def commit(store, number, *, keep=None):
    """One more run; with `keep`, only so many of the older ones stay."""
    draft = store.draft()
    draft.set_source("in", CounterPosition(partitions={"0": number}))
    run = draft.write_run("op", 0, b"run %d" % number, snapshot=draft.parent is None, rows=1)
    run = msgspec.structs.replace(run, epoch_low=number, epoch_high=number)
    old = store.current.files_of("op") if store.current else []
    if keep is not None:
        old = old[len(old) - keep :]
    # New objects, as a pipeline has them: entries become runs, and runs become entries.
    old = [msgspec.json.decode(msgspec.json.encode(entry), type=FileEntry) for entry in old]
    draft.set_operator("op", trace="latest", files=[*old, run], rows=number, keys=number)
    return store.commit(draft)


def filled(storage, count=8, pipeline="p"):
    with open_store(storage, pipeline, topology=SHAPE, settings=Settings(retain=100)) as store:
        for number in range(count):
            commit(store, number)
    return read_store(storage, pipeline)


def runs(reader, ref="latest"):
    manifest = reader.manifest(ref)
    return {reader.directory.storage.get(reader.directory.file(e)) for e in manifest.files_of("op")}


def expected(count):
    return {b"run %d" % number for number in range(count)}


def test_manifests_share_segments_and_list_little(small):
    """Eight runs: two segments of three, written once each, and two runs in the manifest."""
    reader = filled(MemoryStorage())
    found = [reader.manifest(summary) for summary in reversed(reader.list())]
    assert [(len(m.segments), len(m.listed)) for m in found] == [
        (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2),
    ]  # fmt: skip
    assert found[-1].segments[0] == found[4].segments[0]
    assert runs(reader) == expected(8)
    assert found[-1].bytes_total == sum(e.size for e in found[-1].files)
    assert verify_store(reader, deep=True).ok


def test_a_segment_names_the_places_of_what_left_it(small):
    """One run goes: the segment stays as it is, and the manifest says which place is gone."""
    storage = MemoryStorage()
    filled(storage)
    with open_store(storage, "p", topology=SHAPE, settings=Settings(retain=100)) as store:
        before = store.current
        commit(store, 8, keep=7)  # run 0 goes
        after = store.current
        assert after.segments[0] == msgspec.structs.replace(before.segments[0], gone=[0])
        assert before.segments[1] in after.segments
        paths = [entry.path for entry in after.files]
        assert len(paths) == len(set(paths)) == len(after.inventory)
    reader = read_store(storage, "p")
    assert runs(reader) == expected(9) - {b"run 0"}
    assert reader.manifest("latest").bytes_total == sum(e.size for e in after.files)
    assert verify_store(reader, deep=True).ok
    with open_store(storage, "p", topology=SHAPE, settings=Settings(retain=3)) as store:
        commit(store, 9, keep=7)
        commit(store, 10)
        store.retain()
        assert store.gc().error is None
    assert runs(reader) == {b"run %d" % number for number in range(2, 11)}
    assert verify_store(reader, deep=True).ok
    names = {storage.get(e.path) for e in storage.list("p") if "/operators/" in e.path}
    assert names == {b"run %d" % number for number in range(1, 11)}  # an older one keeps run 1


def test_a_segment_that_lost_half_its_files_is_dissolved(small):
    """What is left of it is listed again; nothing is listed twice, nothing that left comes back."""
    storage = MemoryStorage()
    filled(storage)
    with open_store(storage, "p", topology=SHAPE, settings=Settings(retain=100)) as store:
        first = store.current.segments[0]
        commit(store, 8, keep=6)  # runs 0 and 1 go
        assert first.path not in [entry.path for entry in store.current.segments]
        paths = [entry.path for entry in store.current.files]
        assert len(paths) == len(set(paths))
    reader = read_store(storage, "p")
    assert runs(reader) == expected(9) - {b"run 0", b"run 1"}
    assert verify_store(reader, deep=True).ok


@pytest.mark.parametrize("gone", [[3], [-1], [1, 0], [1, 1], [0, 1, 2]])
def test_places_of_a_segment_must_be_possible(small, gone):
    """Places that are none, out of order, named twice, or all: the checkpoint is damaged."""
    manifest = filled(MemoryStorage()).manifest("latest")
    entry = msgspec.structs.replace(manifest.segments[0], gone=gone)
    segments = [part.segment for part in manifest.inventory.parts]
    forged = msgspec.structs.replace(manifest, segments=[entry, *manifest.segments[1:]])
    try:
        findings = validate(with_segments(forged, segments))
    except CorruptionError as error:
        assert error.kind == "segment_differs"
    else:
        assert "bad_segment" in {finding.kind for finding in findings}


def test_collection_keeps_what_segments_list_and_the_segments(small):
    """Reachability goes through segments of old checkpoints that newer ones share."""
    storage = MemoryStorage()
    filled(storage)
    with open_store(storage, "p", topology=SHAPE, settings=Settings(retain=2)) as store:
        commit(store, 8)
        store.retain()
        store.gc()
        assert len(store.list()) == 2
    reader = read_store(storage, "p")
    assert verify_store(reader, deep=True).ok
    assert runs(reader) == expected(9)
    shared = {entry.path for s in reader.list() for entry in reader.manifest(s).segments}
    stored = {e.path.split("/", 1)[1] for e in storage.list("p") if "/segments/" in e.path}
    assert stored == shared


def test_sync_fork_and_rebuild_understand_segments(small):
    """Copies have them, forks list the origin's files, a rebuild reads them."""
    storage, copy = MemoryStorage(), MemoryStorage("copy")
    filled(storage)
    sync_pipeline(storage, copy, "p")
    assert verify_store(read_store(copy, "p"), deep=True).ok
    assert runs(read_store(copy, "p")) == expected(8)
    fork_pipeline(storage, "p", "latest", "q")
    fork = read_store(storage, "q")
    assert {e.pipeline for e in fork.manifest("latest").files_of("op")} == {"p"}
    assert runs(fork) == expected(8)
    assert verify_store(fork, deep=True).ok
    for entry in [*copy.list("p/catalog")]:
        copy.delete(entry.path)
    rebuild_catalog(copy, "p")
    assert len(read_store(copy, "p").list()) == 8
    assert runs(read_store(copy, "p")) == expected(8)


def test_a_footprint_counts_segments_and_their_files(small):
    """Bytes of a checkpoint are those of its manifest and its whole inventory."""
    reader = filled(MemoryStorage())
    newest = footprints(reader)[0]
    summary = reader.list()[0]
    manifest = reader.manifest(summary)
    assert newest.total == summary.manifest_bytes + sum(e.size for e in manifest.files)


@pytest.mark.parametrize("change", ["flip", "truncate", "append", "lose"])
def test_a_damaged_segment_damages_every_checkpoint_that_shares_it(small, change):
    """The segment is found, the checkpoints without it stay whole, and opening falls back."""
    storage = MemoryStorage()
    reader = filled(storage)
    path = f"p/{reader.manifest('latest').segments[0].path}"
    data = storage.get(path)
    changed = {"flip": data[:9] + bytes([data[9] ^ 1]) + data[10:], "truncate": data[:-1],
               "append": data + b"\n"}  # fmt: skip
    if change == "lose":
        storage.delete(path)
    else:
        storage.put(path, changed[change])
    report = verify_store(reader, deep=False)
    bad = [summary.epoch for summary in reader.list() if report.by_checkpoint[summary.checkpoint]]
    assert bad == [7, 6, 5, 4, 3, 2]
    with pytest.raises(CorruptionError):
        reader.manifest("latest")
    with open_store(storage, "p", topology=SHAPE) as store:
        assert store.current.epoch == 1


def test_a_segment_with_other_content_is_found_though_its_own_digest_is_right(small):
    """The manifest's digest of a segment counts, not what the segment says about itself."""
    storage = MemoryStorage()
    reader = filled(storage)
    first, second = (f"p/{entry.path}" for entry in reader.manifest("latest").segments)
    storage.put(first, storage.get(second))
    with pytest.raises(CorruptionError, match="digest"):
        reader.manifest("latest")


def test_counts_of_a_segment_must_be_true():
    """A manifest that claims other numbers than its segment has is damaged."""
    run = FileEntry(path="x", size=3, sha256="", kind="blob")
    segment = Segment(format=2, sha256="", files=[run])
    for files, size in ((2, 3), (1, 4)):
        manifest = mock.Mock(
            segments=[SegmentEntry(path="s", size=1, sha256="", files=files, bytes=size)], listed=[]
        )
        with pytest.raises(CorruptionError) as caught:
            with_segments(manifest, [segment])
        assert caught.value.kind == "segment_differs"


def test_an_inventory_is_not_given_out_before_its_segments_were_read(small):
    """A manifest fresh from its bytes has no complete inventory, and says so loudly."""
    storage = MemoryStorage()
    summary = filled(storage).list()[0]
    path = manifest_path(summary.checkpoint)
    fresh = parse_manifest(storage.get(f"p/{path}"), path, summary.checkpoint)
    with pytest.raises(InternalError):
        _ = fresh.files
    assert manifest_bytes(fresh) == storage.get(f"p/{path}")


def test_only_files_without_an_order_go_into_segments():
    """Runs that do not say their epochs, packs and offsets stay where their order is."""
    run = lambda n, **more: FileEntry(  # noqa: E731
        path=f"r{n}", size=1, sha256="", kind="snapshot", operator="op", **more
    )
    plain = [run(n) for n in range(9)]
    assert arrange([], plain, listed_max=4, segment_files=3).new == []
    dated = [run(n, epoch_low=n, epoch_high=n) for n in range(9, 18)]
    found = arrange([], [*plain, *dated], listed_max=4, segment_files=4)
    assert [[e.path for e in each] for each in found.new] == [
        ["r9", "r10", "r11", "r12"], ["r13", "r14", "r15", "r16"],
    ]  # fmt: skip
    assert found.listed == [*plain, dated[-1]]
    again = arrange([part_of(dated[:4])], [*plain, *dated[4:]], listed_max=100)
    assert (len(again.kept), again.new, len(again.listed)) == (1, [], 14)


def part_of(entries, gone=()):
    segment = Segment(format=2, sha256="", files=entries)
    entry = SegmentEntry(
        path=f"s-{entries[0].path}", size=1, sha256="", files=len(entries),
        bytes=sum(e.size for e in entries), gone=[*gone],
    )  # fmt: skip
    return SharedPart(entry, segment)


def test_small_segments_become_larger_ones():
    """Segments that were written early do not stay small for ever: opening reads few of them."""
    run = lambda n: FileEntry(  # noqa: E731
        path=f"r{n}", size=1, sha256="", kind="snapshot", operator="op", epoch_low=n, epoch_high=n
    )
    parts, listed, most, written = [], [], 0, 0
    for number in range(2_000):
        plan = arrange(parts, [*listed, run(number)], listed_max=8, segment_files=64)
        new = [part_of(entries) for entries in plan.new]
        written += sum(len(entries) for entries in plan.new)
        parts, listed = [*plan.kept, *new], plan.listed
        most = max(most, len(listed))
        assert sorted(e.path for e in [*(e for p in parts for e in p), *listed]) == sorted(
            f"r{n}" for n in range(number + 1)
        )
    assert most <= 8
    assert len(parts) <= 2_000 // 64 + 10
    assert written <= 2_000 * 3


def test_many_files_make_a_small_manifest():
    """What is written follows what changed: the list of old runs is referred to, not repeated."""
    storage = MemoryStorage()
    settings = Settings(retain=100, recovery_verify="shallow")
    with open_store(storage, "p", topology=SHAPE, settings=settings) as store:
        commit(store, 0)
        old = store.current.files_of("op")[0]
        many = [
            msgspec.structs.replace(
                old, path=old.path.replace(old.path[-21:-5], f"{n:016x}"), size=5, sha256="ab" * 32
            )
            for n in range(20_000)
        ]
        storage._objects.update({f"p/{entry.path}": b"run 0" for entry in many})
        draft = store.draft()
        draft.set_source("in", CounterPosition(partitions={"0": 1}))
        draft.set_operator("op", trace="latest", files=many)
        store.commit(draft)
        begun = time.perf_counter()
        summary = commit(store, 2)
        took = time.perf_counter() - begun
        assert summary.manifest_bytes < 150_000
        assert len(store.current.segments) == 20
    written = [e.size for e in storage.list(f"p/checkpoints/{summary.checkpoint}")]
    assert sum(written) < 150_000
    assert took < 10  # seconds; a tenth on an idle machine
    begun = time.perf_counter()
    manifest = read_store(storage, "p").manifest("latest")
    assert len(manifest.files_of("op")) == 20_001
    assert validate(manifest) == []
    assert time.perf_counter() - begun < 20


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("damage", [False, True])
def test_a_lost_record_of_a_checkpoint_with_segments(damage):
    """Opening lists the checkpoint again, if its segments and all that they list are there."""
    storage = MemoryStorage()
    reader = filled(storage)
    state, last = reader.catalog(), reader.resolve("latest")
    old = {entry.path for s in state.live[:-1] for entry in reader.manifest(s).segments}
    own = [e for e in reader.manifest(last).segments if e.path not in old]
    if damage and not own:
        with open_store(storage, "p", topology=SHAPE, settings=Settings(retain=100)) as store:
            while not (own := [e for e in store.current.segments if e.path not in old]):
                commit(store, len(store.list()))
        state, last = reader.catalog(), reader.resolve("latest")
    storage.delete(f"p/catalog/{state.head:020}.json")
    if damage:
        storage.delete(f"p/{own[0].path}")
    with open_store(storage, "p", topology=SHAPE, settings=Settings(retain=100)) as store:
        assert [entry.checkpoint for entry in store.recovery.rescue] == (
            [] if damage else [last.checkpoint]
        )
        commit(store, len(state.live))
    assert verify_store(read_store(storage, "p"), deep=True).ok
