"""What other systems got wrong, each failure by name. The table is in docs/internals/defects.md.

`make mutants` breaks the code on purpose, once for every test here, and expects it to go red.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Settings, failpoints
from holdfast.checkpoint import Part, Topology
from holdfast.checkpoint.schedule import Schedule
from holdfast.clock import ManualClock
from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    FencedError,
    HoldfastError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.format import paths
from holdfast.format.findings import errors_of
from holdfast.format.manifest import PackedState
from holdfast.format.topology import fingerprint
from holdfast.format.validate import validate
from holdfast.ids import SeededIds
from holdfast.storage import LocalStorage, MemoryStorage, open_storage
from holdfast.storage.local.disk import Disk
from tests.helpers.rig import (
    Rig,
    Wrapper,
    at,
    disk_bytes,
    flip,
    forge,
    manifest_path,
    record_path,
    shop,
    tree,
)
from tests.helpers.source import nodes_of

KEEP_2 = Settings(retain=2, exclusive=False)
SHARED = Settings(retain=100, exclusive=False)


class Crash(BaseException):
    """The process ends here."""


def crash_at(wanted):
    """A context in which the process dies at a named point."""

    def die(name):
        if name == wanted:
            raise Crash

    return failpoints.failpoint_handler(die)


# Retention and lineage


def test_retention_by_count_deletes_the_only_full_base(rig):
    """The snapshot that live increments build on stays, although its checkpoint is dropped."""
    with rig.open(settings=KEEP_2) as store:
        first = rig.commit(store)
        for _ in range(4):
            rig.commit(store)
        report = store.retain()
    assert first.checkpoint in report.dropped
    assert len(rig.reader().list()) == 2
    assert [
        path.suffix for path in (rig.home / "checkpoints" / first.checkpoint).rglob("part*")
    ] == [".snap"]
    assert rig.verify().ok
    with rig.open() as store:
        assert len(store.current.files_of("totals")) == 5


def test_deleting_a_checkpoint_that_a_later_one_depends_on_breaks_it(rig):
    """A delete leaves shared runs, and the one that the pipeline builds on cannot be deleted."""
    first, _, third = rig.fill(3)
    with rig.open() as store:
        with pytest.raises(RefusedError) as caught:
            store.delete(third.checkpoint)
        assert caught.value.kind == "not_deletable"
        store.delete(first.checkpoint)
        assert first.checkpoint not in [entry.checkpoint for entry in store.list()]
    assert rig.verify().ok
    with rig.open() as store:
        assert store.current.checkpoint == third.checkpoint


def test_a_restart_makes_a_checkpoint_due_at_once(rig):
    """Time since the last checkpoint is carried over a restart, not forgotten."""
    settings = Settings(interval_ms=60_000, log_bytes_min=0, retain=2)
    with rig.open(settings=settings) as store:
        rig.commit(store)
    rig.clock.advance_ms(10_000)
    with rig.open(settings=settings) as store:
        schedule = store.schedule()
        schedule.epoch_done()
        assert not schedule.should_checkpoint()
        assert schedule.due_in_ms() == 50_000
        rig.clock.advance_ms(50_000)
        assert schedule.should_checkpoint()


def test_a_crash_loop_evicts_every_good_checkpoint(rig):
    """Twenty restarts in a row make no checkpoint and drop none."""
    settings = Settings(interval_ms=60_000, log_bytes_min=0, retain=2)
    good = {entry.checkpoint for entry in rig.fill(2, opening={"settings": settings})}
    for _ in range(20):
        rig.clock.advance_ms(500)
        with rig.open(settings=settings) as store:
            schedule = store.schedule()
            schedule.epoch_done()
            if schedule.should_checkpoint():
                rig.commit(store)
            store.retain()
    assert {entry.checkpoint for entry in rig.reader().list()} == good
    assert rig.verify().ok


def test_retention_runs_before_the_sinks_have_committed(rig):
    """A checkpoint with pending sinks does not count, and never pushes a committed one out."""
    with rig.open(settings=KEEP_2) as store:
        committed = [rig.commit(store) for _ in range(2)]
        for _ in range(4):
            rig.commit(store, settle=False)
            store.retain()
        assert {e.checkpoint for e in committed} <= {e.checkpoint for e in store.list()}
        assert len(store.list()) == 6


def test_a_retention_error_turns_a_published_checkpoint_into_a_failure(tmp_path):
    """What retention cannot do stands in its report; the commit before it stays a success."""
    storage = Wrapper(LocalStorage(tmp_path / "root"))
    rig = Rig(storage)
    with rig.open(settings=KEEP_2) as store:
        for _ in range(4):
            last = rig.commit(store)

        def full(real, path, data):
            raise StorageError("no space left", kind="disk_full", took_effect=False, retryable=True)

        storage.hooks = {"put_new": full}
        report = store.retain()
        assert report.error.kind == "disk_full"
        assert report.dropped == ()
        storage.hooks = {}
        assert store.current.checkpoint == last.checkpoint
        assert len(store.retain().dropped) == 2
    assert rig.verify().ok


def test_partial_directories_are_never_reclaimed_or_count_as_kept(rig):
    """What a crashed commit left is removed at the next opening and is no checkpoint."""
    rig.fill(2, opening={"settings": KEEP_2})
    for point in ("commit.before_manifest", "commit.after_manifest", "commit.after_barrier"):
        with pytest.raises(Crash), crash_at(point), rig.open(settings=KEEP_2) as store:
            rig.commit(store)
    assert len(list((rig.home / "checkpoints").iterdir())) > 2
    with rig.open(settings=KEEP_2) as store:
        assert store.cleanup.deleted > 0
        assert store.cleanup.error is None
        assert len(store.list()) == 2
    assert len(list((rig.home / "checkpoints").iterdir())) == 2
    assert rig.verify().ok


def test_keep_zero_deletes_everything_and_leaves_a_dangling_pointer(rig):
    """Nobody can ask for no checkpoint at all; after retention the hint names a live one."""
    for retain in (0, 1, -1):
        with pytest.raises(InvalidInputError) as caught:
            Settings(retain=retain)
        assert caught.value.kind == "invalid_setting"
    with rig.open(settings=KEEP_2) as store:
        for _ in range(5):
            rig.commit(store)
            store.retain()
        live = {entry.checkpoint for entry in store.list()}
    assert json.loads((rig.home / "_latest").read_bytes())["checkpoint"] in live


# Durability and atomicity


class Journalling(Disk):
    """Writes down every sync and every new name, in order."""

    def __init__(self):
        self.log = []

    def _named(self, descriptor):
        return os.readlink(f"/proc/self/fd/{descriptor}")

    def sync(self, descriptor):
        super().sync(descriptor)
        self.log.append(("sync", self._named(descriptor)))

    def sync_dir(self, path):
        super().sync_dir(path)
        self.log.append(("sync", str(path)))

    def sync_filesystem(self, descriptor):
        super().sync_filesystem(descriptor)
        self.log.append(("sync", "everything"))

    def link_new(self, source, target):
        super().link_new(source, target)
        self.log.append(("name", str(source), str(target)))

    def rename(self, source, target):
        super().rename(source, target)
        self.log.append(("name", str(source), str(target)))


def _commit_log(tmp_path, barrier="fsync"):
    disk = Journalling()
    storage = LocalStorage(tmp_path / "root", disk=disk, barrier=barrier)
    rig = Rig(storage)
    with rig.open() as store:
        rig.commit(store)
        disk.log.clear()
        summary = store.commit(rig.draft(store))
    return disk.log, summary


def test_metadata_is_written_without_fsync(tmp_path):
    """The record's content is synced before it gets its name, and so is all that it names."""
    log, summary = _commit_log(tmp_path)
    (name,) = [i for i, e in enumerate(log) if e[0] == "name" and "/catalog/" in e[2]]
    synced = [entry[1] for entry in log[:name] if entry[0] == "sync"]
    assert log[name][1] in synced
    home = f"{tmp_path}/root/shop/checkpoints/{summary.checkpoint}"
    assert f"{home}/manifest.json" in synced
    assert any(path.endswith(".delta") for path in synced)
    assert {home, f"{home}/operators/totals", f"{tmp_path}/root/shop/checkpoints"} <= set(synced)


def test_the_mere_existence_of_metadata_counts_as_complete(rig):
    """A manifest without a record is no checkpoint, however whole it is."""
    (first,) = rig.fill(1)
    with pytest.raises(Crash), crash_at("commit.after_barrier"), rig.open() as store:
        rig.commit(store)
    assert len(list(rig.home.glob("checkpoints/*/manifest.json"))) == 2
    assert [entry.checkpoint for entry in rig.reader().list()] == [first.checkpoint]
    with rig.open(takeover=True) as store:
        assert store.current.checkpoint == first.checkpoint


@pytest.mark.parametrize("verb", ["put_new", "put"])
def test_a_rename_is_not_followed_by_a_directory_fsync(tmp_path, verb):
    """The directory is synced after the name was given, and before the call returns."""
    disk = Journalling()
    storage = LocalStorage(tmp_path / "root", disk=disk)
    storage.put_new("p/before", b"x")
    disk.log.clear()
    getattr(storage, verb)("p/a", b"x")
    name = next(i for i, entry in enumerate(disk.log) if entry[0] == "name")
    assert ("sync", f"{tmp_path}/root/p") in disk.log[name + 1 :]


@pytest.mark.parametrize("content", ["older", "garbage", "missing", "future"])
def test_two_files_both_act_as_the_current_one(rig, content):
    """The hint decides nothing: an old, garbled, lost or future one changes no recovery."""
    with rig.open() as store:
        rig.commit(store)
        older = (rig.home / "_latest").read_bytes()
        second = rig.commit(store)
    hint = rig.home / "_latest"
    if content == "missing":
        hint.unlink()
    else:
        future = forge(older, sequence=99, epoch=77)
        hint.write_bytes({"older": older, "garbage": b"\0\0", "future": future}[content])
    assert (
        holdfast.checkpoint.recovery_plan(rig.root, "shop").chosen.checkpoint == second.checkpoint
    )
    assert rig.reader().resolve("latest").checkpoint == second.checkpoint
    with rig.open() as store:
        assert store.current.checkpoint == second.checkpoint


def test_the_manifest_is_rewritten_after_the_sink_commit(rig):
    """Outcomes lie elsewhere: the manifest has the same bytes before and after."""
    with rig.open() as store:
        summary = rig.commit(store, settle=False)
        path = manifest_path(rig, summary.checkpoint)
        before = path.read_bytes(), path.stat().st_mtime_ns
        store.record_outcome(summary.checkpoint, "out", "failed", reason="first try")
        store.record_outcome(summary.checkpoint, "out", "committed")
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert rig.verify().ok


def test_a_failed_catalog_write_leaves_a_phantom_in_memory(tmp_path):
    """After a failed commit, list, current and the next epoch are as before, and a retry works."""
    storage = Wrapper(LocalStorage(tmp_path / "root"))
    rig = Rig(storage)
    with rig.open() as store:
        first = rig.commit(store)
        draft = rig.draft(store)

        def fail(real, path, data):
            raise StorageError("denied", kind="denied", took_effect=False)

        storage.hooks = {"put_new": fail}
        with pytest.raises(StorageError):
            store.commit(draft)
        storage.hooks = {}
        assert [entry.checkpoint for entry in store.list()] == [first.checkpoint]
        assert store.current.checkpoint == first.checkpoint
        assert store.epoch_next == first.epoch + 1
        assert not storage.exists(f"shop/{paths.manifest(draft.checkpoint)}")
        assert [e.checkpoint for e in rig.reader().list()] == [first.checkpoint]
        second = store.commit(draft)
    assert [e.checkpoint for e in rig.reader().list()] == [second.checkpoint, first.checkpoint]
    assert rig.verify().ok


def test_a_retried_put_that_had_succeeded_is_reported_as_a_conflict(tmp_path):
    """A lost reply is resolved by reading back: our own bytes there mean success."""
    storage = Wrapper(LocalStorage(tmp_path / "root"))
    rig = Rig(storage)
    lost = []

    def lose_once(real, path, data):
        real(path, data)
        if "/catalog/" in path and not lost:
            lost.append(path)
            raise StorageError("reply lost", took_effect=None, retryable=True)

    with rig.open() as store:
        storage.hooks = {"put_new": lose_once}
        summary = rig.commit(store)
        rig.commit(store)
    assert lost
    assert summary.checkpoint in [entry.checkpoint for entry in rig.reader().list()]
    assert rig.verify().ok


def test_exists_already_is_taken_for_success_when_another_writer_wrote_it(tmp_path):
    """Other bytes under our number mean that we lost, even when our reply was lost as well."""
    storage = Wrapper(LocalStorage(tmp_path / "root"))
    rig = Rig(storage)

    def rival(real, path, data):
        if "/catalog/" in path:
            real(path, data.replace(b'"at_us":17', b'"at_us":18'))
            raise StorageError("reply lost", took_effect=None, retryable=True)
        real(path, data)

    with rig.open() as store:
        first = rig.commit(store)
        draft = rig.draft(store)
        storage.hooks = {"put_new": rival}
        with pytest.raises(FencedError):
            store.commit(draft)
        assert [entry.checkpoint for entry in store.list()] == [first.checkpoint]


def test_artifacts_lie_beside_the_checkpoint_so_that_delete_deletes_nothing(rig):
    """Every file lies below its checkpoint's directory, and deleting it empties that directory."""
    with rig.open(settings=Settings(retain=100, inline_bytes_max=0)) as store:
        summaries = [rig.commit(store, snapshot=True, small=b"x" * 50) for _ in range(3)]
        for summary in summaries:
            manifest = store.reader.manifest(summary)
            own = [f for f in manifest.files if summary.checkpoint in f.path]
            assert {f.kind for f in own} == {"snapshot", "pack"}
            assert all(f.path.startswith(f"checkpoints/{summary.checkpoint}/") for f in own)
        victim = rig.home / "checkpoints" / summaries[1].checkpoint
        size = disk_bytes(victim)
        before = disk_bytes(rig.home / "checkpoints")
        report = store.delete(summaries[1].checkpoint)
        assert not victim.exists()
        assert before - disk_bytes(rig.home / "checkpoints") == size
        assert report.bytes >= size


# Recovery


@pytest.mark.parametrize("what", ["manifest", "record", "run"])
def test_torn_newest_metadata_is_a_hard_error_or_becomes_a_parent(rig, what):
    """A torn newest checkpoint is reported, passed over, and never built on."""
    first, second = rig.fill(2)
    torn = {
        "manifest": manifest_path(rig, second.checkpoint),
        "record": record_path(rig, second.sequence),
        "run": next((rig.home / "checkpoints" / second.checkpoint).rglob("*.delta")),
    }[what]
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    with rig.open() as store:
        assert store.current.checkpoint == first.checkpoint
        if what == "record":
            assert "record" in " ".join(store.recovery.notes).lower()
        else:
            damaged = [c for c in store.recovery.candidates if c.verdict == "damaged"]
            assert [c.summary.checkpoint for c in damaged] == [second.checkpoint]
            assert damaged[0].findings
        rig.offset = 10
        third = rig.commit(store)
        assert third.parent == first.checkpoint
        assert third.epoch == 2
    with rig.open() as store:
        assert store.current.checkpoint == third.checkpoint


def test_a_lost_pointer_or_a_network_error_means_a_fresh_start(tmp_path):
    """Only an empty store is fresh; silence of the network and a lost pointer are not empty."""
    storage = Wrapper(LocalStorage(tmp_path / "root"))
    rig = Rig(storage)
    (first,) = rig.fill(1)
    (tmp_path / "root" / "shop" / "_latest").unlink()

    def silent(real, *args, **kwargs):
        raise StorageError("no route", kind="unreachable", retryable=True)

    for operation in ("get", "list"):
        storage.hooks = {operation: silent}
        with pytest.raises(StorageError):
            rig.open()
        with pytest.raises(StorageError):
            holdfast.checkpoint.recovery_plan(storage, "shop")._headline()
            rig.reader().list()
    storage.hooks = {}
    with rig.open() as store:
        assert store.recovery.mode == "resume"
        assert store.current.checkpoint == first.checkpoint


def test_a_lost_catalog_means_a_fresh_start(rig):
    """A store with checkpoints but no catalog is refused with the remedy, and nothing is touched."""
    rig.fill(2)
    shutil.rmtree(rig.home / "catalog")
    before = tree(rig.root)
    with pytest.raises(CorruptionError) as caught:
        rig.open()
    assert caught.value.kind == "catalog_lost"
    assert "rebuild-catalog" in caught.value.remedy
    assert tree(rig.root) == before


def test_every_candidate_bad_gives_the_same_answer_as_an_empty_store(rig):
    """Nothing intact is an error that says so; an empty store is fresh."""
    assert holdfast.checkpoint.recovery_plan(MemoryStorage(), "shop").mode == "fresh"
    for summary in rig.fill(2):
        flip(manifest_path(rig, summary.checkpoint))
    before = tree(rig.root)
    plan = holdfast.checkpoint.recovery_plan(rig.root, "shop")
    assert plan.mode == "refuse"
    assert [candidate.verdict for candidate in plan.candidates] == ["damaged", "damaged"]
    with pytest.raises(CorruptionError) as caught:
        rig.open()
    assert caught.value.kind == "no_intact_checkpoint"
    assert tree(rig.root) == before


def test_a_restart_sets_the_epoch_back_and_forgets_offsets_and_watermark(rig):
    """Epoch, positions and watermark go on where they were; no id or epoch is used twice."""
    seen = []
    for number in range(3):
        with rig.open() as store:
            assert store.epoch_next == number
            if number:
                assert store.current.source("orders").position == at(number * 10)
                assert store.current.watermark_us == number * 100
            seen.append(rig.commit(store, watermark_us=(number + 1) * 100))
    assert [entry.epoch for entry in seen] == [0, 1, 2]
    assert len({entry.checkpoint for entry in seen}) == 3


def test_an_epoch_of_a_branch_that_was_left_is_used_again(rig):
    """After going back, the next epoch is one that no branch has ever had."""
    first, *_ = rig.fill(3)
    rig.offset = 10
    with rig.open(resume=first.checkpoint) as store:
        assert store.epoch_next == 3
        with pytest.raises(InvalidInputError) as caught:
            draft = store.draft(epoch=1)
            draft.set_source("orders", at(20))
            store.commit(draft)
        assert caught.value.kind == "epoch_used"
        assert rig.commit(store).epoch == 3


def test_corrupt_operator_state_is_logged_and_the_operator_starts_from_scratch(rig):
    """Reading damaged small state raises; recovery takes the checkpoint before it instead."""
    with rig.open(settings=Settings(retain=9, inline_bytes_max=0)) as store:
        first, second = (rig.commit(store, small=b"state %d" % n) for n in range(2))
    flip(rig.home / paths.pack(second.checkpoint))
    reader = rig.reader()
    with pytest.raises(CorruptionError) as caught:
        reader.small_state(reader.manifest(second), "counter")
    assert caught.value.kind == "digest_differs"
    with rig.open() as store:
        assert store.current.checkpoint == first.checkpoint
        assert store.reader.small_state(store.current, "counter") == b"state 0"


def test_offsets_are_restored_while_operator_state_is_empty(rig):
    """A checkpoint without the state of a stateful part, or without a position, is not committed."""
    with rig.open() as store:
        draft = store.draft()
        draft.set_source("orders", at(10))
        draft.put_small("counter", b"1")
        with pytest.raises(InvalidInputError) as caught:
            store.commit(draft)
        assert "state of totals is missing" in str(caught.value)
        other = store.draft()
        other.set_operator(
            "totals", trace="latest", files=[other.write_run("totals", 0, b"x", snapshot=True)]
        )
        with pytest.raises(InvalidInputError) as caught:
            store.commit(other)
        assert "source orders has no entry" in str(caught.value)
    assert rig.reader().list() == []


def test_watermarks_restart_at_minus_infinity(rig):
    """A new draft begins with the watermark that was restored, and cannot go below it."""
    with rig.open() as store:
        rig.commit(store, watermark_us=500)
    with rig.open() as store:
        rig.commit(store)
        assert store.current.watermark_us == 500
        draft = rig.draft(store)
        draft.set_watermark(499)
        with pytest.raises(InvalidInputError) as caught:
            store.commit(draft)
        assert caught.value.kind == "watermark_regressed"


@given(st.permutations(shop().parts))
def test_the_pipeline_hash_depends_on_the_order_of_parts(parts):
    """Any order of declaration gives one fingerprint."""
    assert fingerprint(Topology(parts=parts)) == fingerprint(shop())


def test_a_changed_pipeline_is_only_a_log_line(rig):
    """Another pipeline is refused, part by part, before anything is written; allowed by name only."""
    rig.fill(1)
    changed = shop(
        totals=Part(
            name="totals", kind="operator", what="sum", inputs=["orders"], keys=["region"],
            stateful=True,
        )
    )  # fmt: skip
    before = tree(rig.root)
    with pytest.raises(IncompatibleError) as caught:
        rig.open(topology=changed)
    assert caught.value.kind == "fingerprint_differs"
    assert 'totals: keys was ["customer"], is ["region"]' in caught.value.facts["differences"]
    assert tree(rig.root) == before
    rig.open(topology=changed, allow_changes=True).close()


def test_a_directory_name_that_does_not_match_the_id_inside(rig):
    """A manifest in another checkpoint's directory is misplaced, not that checkpoint."""
    first, second = rig.fill(2)
    copied = manifest_path(rig, first.checkpoint).read_bytes()
    other = SeededIds(99).checkpoint_id(5)
    target = manifest_path(rig, other)
    target.parent.mkdir()
    target.write_bytes(copied)
    shutil.rmtree(rig.home / "catalog")
    plan = holdfast.checkpoint.plan_rebuild(rig.reader())
    assert [f.summary.checkpoint for f in plan.take] == [first.checkpoint, second.checkpoint]
    assert "directory of another checkpoint" in plan.leave[paths.manifest(other)]


# Integrity


def test_truncated_state_loads_without_complaint(rig):
    """State of 1,000 bytes cut to 2 is found by its size alone, and by recovery."""
    with rig.open() as store:
        first = rig.commit(store)
        second = rig.commit(store, run=b"x" * 1_000)
    run = next((rig.home / "checkpoints" / second.checkpoint).rglob("*.delta"))
    run.write_bytes(b"xx")
    report = rig.verify(deep=False)
    (finding,) = report.all_findings()
    assert (finding.kind, finding.expected, finding.actual) == ("size_differs", "1000", "2")
    with rig.open(settings=Settings(retain=9, recovery_verify="shallow")) as store:
        assert store.recovery.depth == "shallow"
        assert store.current.checkpoint == first.checkpoint


def test_verification_tests_presence_only_and_only_of_some_files(rig):
    """Every file of every checkpoint is hashed, inherited ones too, and each damaged one is named."""
    with rig.open(settings=Settings(retain=9, inline_bytes_max=0)) as store:
        for number in range(3):
            rig.commit(store, small=b"state %d" % number)
    files = [
        p for p in (rig.home / "checkpoints").rglob("*") if p.suffix in (".snap", ".delta", ".pack")
    ]
    assert len(files) == 6
    assert len({path.suffix for path in files}) == 3
    assert rig.verify().files == len(files)
    for path in files:
        good = path.read_bytes()
        flip(path)
        assert rig.verify(deep=False).ok
        found = rig.verify(deep=True).all_findings()
        assert [f.path for f in found] == [f"shop/{path.relative_to(rig.home)}"]
        path.unlink()
        assert [f.kind for f in rig.verify(deep=False).all_findings()] == ["missing"]
        path.write_bytes(good)
    assert rig.verify().ok


@pytest.mark.parametrize(
    "name", ["holdfast.json", "_latest", "catalog", "manifest.json", "outcomes", "pins"]
)
def test_the_checksum_is_optional_or_covers_only_the_sidecar(rig, name):
    """Header, hint, records, manifests with inline state, outcomes and pins: each has a digest."""
    with rig.open() as store:
        rig.commit(store)
        store.pin("gold")
    targets = [
        p for p in rig.home.rglob("*") if p.is_file() and name in str(p.relative_to(rig.home))
    ]
    assert targets
    for path in targets:
        good = path.read_bytes()
        digits = [i for i, byte in enumerate(good) if chr(byte) in "2468" and i > 20]
        for place in digits[:: max(1, len(digits) // 10)]:
            flip(path, place)
            assert not _ok(rig), (path, place)
            path.write_bytes(good)


def test_inline_and_external_flags_contradict_each_other_and_ranges_overlap(rig):
    """State has one place by type, and two states never share bytes of a pack."""
    (manifest,) = (rig.reader().manifest(s) for s in _pack_two(rig))
    first, second = (manifest.operator(name).small for name in ("counter", "second"))
    assert (first.offset, first.length, second.offset) == (0, 4, 4)
    for offset in (0, 3):
        moved = msgspec.structs.replace(
            manifest.operator("second"), small=msgspec.structs.replace(second, offset=offset)
        )
        operators = [o if o.name != "second" else moved for o in manifest.operators]
        bad = msgspec.structs.replace(manifest, operators=operators)
        assert "ranges_overlap" in {f.kind for f in errors_of(validate(bad))}
    with rig.open(settings=Settings(retain=9, inline_bytes_max=3)) as store:
        rig.commit(store, small=b"four")
        small = store.current.operator("counter").small
        assert isinstance(small, PackedState)
        assert not hasattr(small, "data")
        rig.commit(store, small=b"3")
        assert not isinstance(store.current.operator("counter").small, PackedState)
        assert not [f for f in store.current.files if f.kind == "pack"]


def _pack_two(rig):
    """A checkpoint with two states in one pack, in a pipeline of its own."""
    rig.pipeline = "packed"
    two = shop(second=Part(name="second", kind="operator", what="x"))
    with rig.open(topology=two, settings=Settings(inline_bytes_max=0)) as store:
        draft = rig.draft(store, small=b"four")
        draft.put_small("second", b"more")
        yield store.commit(draft)
    rig.pipeline = "shop"


@pytest.mark.parametrize("what", ["header", "record", "manifest"])
def test_a_document_of_a_newer_version_is_accepted(rig, what):
    """A newer header, record or manifest stops everything by name, and nothing is changed."""
    first, second = rig.fill(2)
    path = {
        "header": rig.home / "holdfast.json",
        "record": record_path(rig, second.sequence),
        "manifest": manifest_path(rig, second.checkpoint),
    }[what]
    path.write_bytes(forge(path.read_bytes(), format=3))
    if what == "manifest":  # as the newer version would have written it: the catalog agrees
        record = record_path(rig, second.sequence)
        body = json.loads(record.read_bytes())["body"]
        body["summary"]["manifest_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        body["summary"]["manifest_bytes"] = path.stat().st_size
        record.write_bytes(forge(record.read_bytes(), body=body))
    before = tree(rig.root)
    for use in (rig.open, lambda: rig.reader().manifest("latest")):
        with pytest.raises(IncompatibleError) as caught:
            use()
        assert caught.value.kind == "newer_format"
    assert not _ok(rig)
    assert tree(rig.root) == before


def _ok(rig):
    try:
        return rig.verify().ok
    except HoldfastError:
        return False


def test_listing_silently_skips_what_it_cannot_read(rig):
    """A damaged record is an error of the list, shown by name; a damaged manifest is listed still."""
    first, second, third = rig.fill(3)
    flip(manifest_path(rig, second.checkpoint))
    assert len(rig.reader().list()) == 3
    assert [f.readable for f in holdfast.checkpoint.footprints(rig.reader())] == [True, False, True]
    flip(record_path(rig, second.sequence))
    with pytest.raises(CorruptionError) as caught:
        rig.reader().list()
    assert caught.value.kind == "catalog_damaged"
    assert paths.record(second.sequence) in caught.value.facts["path"]
    assert [f.path for f in rig.reader().catalog().damage] == [
        f"shop/{paths.record(second.sequence)}"
    ]


def test_a_hash_that_covers_only_the_payload_lets_records_be_edited_and_reordered(rig):
    """A record with another header, or two in exchanged order, breaks the chain although each is valid."""
    with rig.open() as store:
        for _ in range(3):
            rig.commit(store, replay=None)
    one, two = record_path(rig, 2), record_path(rig, 3)
    good = one.read_bytes(), two.read_bytes()
    one.write_bytes(forge(good[0], at_us=1))
    assert "chain_broken" in {f.kind for f in rig.verify().all_findings()}
    one.write_bytes(forge(good[1], sequence=2))
    two.write_bytes(forge(good[0], sequence=3))
    assert "chain_broken" in {f.kind for f in rig.verify().all_findings()}


def test_a_pointer_past_the_end_of_a_truncated_log_restores_what_does_not_exist(rig):
    """A hint ahead of the catalog is found as loss of records, and nothing is restored from it."""
    first, second = rig.fill(2, replay=None)
    record_path(rig, second.sequence).unlink()
    report = rig.verify()
    assert "catalog_shrank" in {f.kind for f in report.all_findings() if f.severity == "error"}
    with rig.open() as store:
        assert store.current.checkpoint == first.checkpoint


def test_a_valid_but_inconsistent_document_makes_open_fail_instead_of_falling_back(rig):
    """A manifest with a right digest and wrong content is passed over, like any damaged one."""
    first, second = rig.fill(2)
    path = manifest_path(rig, second.checkpoint)
    path.write_bytes(forge(path.read_bytes(), epoch=0, bytes_total=-5))
    (rig.home / "_latest").write_bytes(forge((rig.home / "_latest").read_bytes(), epoch=77))
    with rig.open() as store:
        assert store.current.checkpoint == first.checkpoint


# Concurrency


def test_two_writers_on_one_directory_get_the_same_id_and_one_overwrites_the_other(rig):
    """Of two writers with equal ids one commits, the other is told, and nothing is overwritten."""
    one = rig.open(settings=SHARED, ids=SeededIds(1))
    two = rig.open(settings=SHARED, ids=SeededIds(1))
    draft = rig.draft(one)
    winner = rig.commit(two, settle=False)
    before = {p.name: p.read_bytes() for p in (rig.home / "catalog").iterdir()}
    with pytest.raises((FencedError, AlreadyExistsError)):
        one.commit(draft)
    assert {p.name: p.read_bytes() for p in (rig.home / "catalog").iterdir()} == before
    assert [entry.checkpoint for entry in rig.reader().list()] == [winner.checkpoint]
    with pytest.raises(FencedError):
        one.draft()


def test_a_zombie_commits_after_its_successor_has_started(rig):
    """From the moment the successor's open record exists, the old writer cannot commit."""
    zombie = rig.open(settings=SHARED)
    rig.commit(zombie)
    draft = rig.draft(zombie)
    with rig.open(settings=SHARED, clean_up=False) as successor:
        for write in (
            lambda: zombie.commit(draft),
            zombie.draft,
            zombie.gc,
            zombie.compact,
            lambda: zombie.delete("latest"),
        ):
            with pytest.raises(FencedError) as caught:
                write()
            assert "stop this process" in caught.value.remedy
        rig.commit(successor)
    assert rig.verify().ok


def test_a_zombie_whose_draft_was_cleaned_up_is_told_that_it_is_fenced(rig):
    """The missing files of its draft are the successor's work, and not a reason to write again."""
    zombie = rig.open(settings=SHARED)
    rig.commit(zombie)
    draft = rig.draft(zombie)
    with rig.open(settings=SHARED):
        with pytest.raises(FencedError):
            zombie.commit(draft)


def test_a_zombie_writes_into_a_slot_that_a_compaction_has_freed(rig):
    """A record below the base of a successor means nothing, and its writer is told that it is fenced."""
    zombie = rig.open(settings=SHARED)
    rig.commit(zombie)
    draft = rig.draft(zombie)
    with rig.open(settings=SHARED, clean_up=False) as successor:
        live = [entry.checkpoint for entry in successor.list()]
        successor.compact()
        with pytest.raises(FencedError):
            zombie.commit(draft)
        assert [entry.checkpoint for entry in rig.reader().list()] == live
        with pytest.raises(FencedError):
            zombie.draft()


def test_a_read_only_command_helpfully_writes(rig, tmp_path):
    """Every reading function leaves the tree byte for byte as it was, and creates no root."""
    with rig.open() as store:
        for _ in range(3):
            rig.commit(store)
        store.pin("gold")
    (rig.home / "_latest").unlink()
    (rig.home / "catalog" / ".hf-tmp-0000000000000000").write_bytes(b"left over")
    before = tree(rig.root)
    reader = rig.reader()
    reader.list()
    reader.catalog()
    reader.outcomes()
    reader.pins()
    reader.small_state(reader.manifest("gold"), "counter")
    reader.resolve("latest")
    holdfast.checkpoint.footprints(reader)
    holdfast.checkpoint.list_pipelines(rig.root)
    holdfast.checkpoint.plan_rebuild(reader)
    holdfast.checkpoint.recovery_plan(rig.root, "shop", topology=shop())
    holdfast.checkpoint.verify_store(reader, deep=True)
    assert tree(rig.root) == before
    with pytest.raises(NotFoundError):
        holdfast.checkpoint.read_store(tmp_path / "nowhere", "shop")
    with pytest.raises(NotFoundError):
        holdfast.checkpoint.recovery_plan(tmp_path / "nowhere", "shop")
    with pytest.raises(NotFoundError):
        holdfast.checkpoint.list_pipelines(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


# Names and input


@pytest.mark.parametrize("name", ["../evil", "a/b", "..", "/abs", "a\\b", "", ".hidden"])
def test_names_with_separators_escape_the_root(rig, name):
    """Pipeline, part, label and reference with a path in them are refused, and nothing is written."""
    rig.fill(1)
    before = tree(rig.root.parent)
    uses = [
        lambda: holdfast.checkpoint.open_store(rig.root, name, topology=shop()),
        lambda: holdfast.checkpoint.read_store(rig.root, name),
        lambda: holdfast.checkpoint.topology(Part(name=name, kind="source", what="x")),
        lambda: holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), name),
    ]
    for use in uses:
        with pytest.raises(InvalidInputError) as caught:
            use()
        assert caught.value.kind == "invalid_name"
    assert tree(rig.root.parent) == before
    with rig.open() as store:
        draft = store.draft()
        for use in (
            lambda: store.pin(name),
            lambda: store.unpin(name),
            lambda: store.draft(label=name),
            lambda: draft.set_source(name, at(1)),
            lambda: draft.put_small(name, b""),
            lambda: draft.run_path(name, 0, snapshot=True),
            lambda: draft.put_offsets(name, b""),
        ):
            with pytest.raises(InvalidInputError):
                use()
    assert sorted(p.name for p in rig.root.parent.iterdir()) == ["root"]


def test_intervals_below_one_second_are_always_due():
    """An interval of 250 ms is due after 250 ms, and not before."""
    clock = ManualClock()
    schedule = Schedule(Settings(interval_ms=250, log_bytes_min=0), clock)
    schedule.epoch_done()
    for _ in range(5):
        clock.advance_ms(249)
        assert not schedule.should_checkpoint()
        clock.advance_ms(1)
        assert schedule.should_checkpoint()
        schedule.checkpointed()
        schedule.epoch_done()


def test_a_clock_stepped_back_stops_checkpoints():
    """Stepping the wall clock in either direction changes nothing about what is due."""
    for step in (-86_400_000, 86_400_000):
        clock = ManualClock()
        schedule = Schedule(Settings(interval_ms=1_000, log_bytes_min=0), clock)
        schedule.epoch_done()
        clock.advance_ms(500)
        clock.step_wall_ms(step)
        assert not schedule.should_checkpoint()
        assert schedule.due_in_ms() == 500
        clock.advance_ms(500)
        assert schedule.should_checkpoint()


def test_a_setting_is_accepted_documented_and_never_read():
    """Every knob is read somewhere, and described in the docstring."""
    source = Path(holdfast.__file__).parent
    read = set()
    for path in source.rglob("*.py"):
        if path.name != "settings.py":
            for node in nodes_of(path):
                if isinstance(node, ast.Attribute):
                    read.add(node.attr)
    for field in Settings.__struct_fields__:
        assert field in read, field
        assert f"    {field}: " in Settings.__doc__


def test_every_failure_collapses_into_one_code(tmp_path):
    """Seven different situations have seven different kinds."""
    kinds = {}
    rig = Rig(tmp_path / "root")
    (first,) = rig.fill(1)

    def kind(use):
        try:
            use()
        except HoldfastError as error:
            return error.kind
        return None

    kinds["absent root"] = kind(lambda: holdfast.checkpoint.read_store(tmp_path / "none", "shop"))
    kinds["absent pipeline"] = kind(lambda: holdfast.checkpoint.read_store(rig.root, "other"))
    (rig.root / "foreign").mkdir()
    (rig.root / "foreign" / "notes.txt").write_text("hello")
    kinds["foreign directory"] = kind(lambda: holdfast.checkpoint.read_store(rig.root, "foreign"))
    kinds["absent checkpoint"] = kind(lambda: rig.reader().resolve("epoch:9"))
    flip(manifest_path(rig, first.checkpoint))
    kinds["damaged manifest"] = kind(lambda: rig.reader().manifest("epoch:0"))
    kinds["nothing intact"] = kind(rig.open)
    shutil.rmtree(rig.home / "catalog")
    kinds["lost catalog"] = kind(lambda: rig.reader().list())
    (rig.home / "holdfast.json").unlink()
    kinds["lost header"] = kind(rig.reader)
    assert None not in kinds.values()
    assert len(set(kinds.values())) == len(kinds), kinds


def test_a_second_writer_on_the_same_machine_waits_for_nothing_and_breaks_nothing(rig):
    """A live writer keeps its lock: the second one is refused with the pid, unless it takes over."""
    with rig.open() as store:
        with pytest.raises(ConflictError) as caught:
            rig.open()
        assert caught.value.kind == "locked"
        assert caught.value.facts["pid"] == os.getpid()
        rig.commit(store)
        with rig.open(takeover=True):
            with pytest.raises(FencedError):
                rig.commit(store)
