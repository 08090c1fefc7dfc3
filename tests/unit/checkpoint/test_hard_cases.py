"""Cases that a careful reader of the core would try first."""

from __future__ import annotations

import os
import threading

import pytest

import holdfast
from holdfast import Settings, failpoints
from holdfast.checkpoint import FileEntry, JournalPosition
from holdfast.errors import (
    CommitUnknownError,
    CorruptionError,
    HoldfastError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.format.documents import parse_record
from holdfast.format.position import MysqlPosition, compare
from holdfast.storage import LocalStorage, MemoryStorage, open_storage
from tests.helpers.rig import (
    RELAXED,
    Rig,
    Wrapper,
    at,
    disk_bytes,
    forge,
    manifest_path,
    record_path,
    shop,
)


def _lose_reply(path_part):
    """A put-if-absent that works, but whose answers are all lost."""

    def put_new(real, path, data):
        if path_part not in path:
            return real(path, data)
        try:
            real(path, data)
        finally:
            raise StorageError("reply lost", took_effect=None, retryable=True)

    def get(real, path, **kwargs):
        if path_part in path:
            raise StorageError("no route", took_effect=False, retryable=True)
        return real(path, **kwargs)

    return {"put_new": put_new, "get": get}


@pytest.mark.parametrize("way", ["store", "draft"])
def test_a_commit_of_unknown_outcome_keeps_its_files_when_everything_is_closed(tmp_path, way):
    """Closing after an unknown commit must not delete files that the record may already name."""
    inner = LocalStorage(tmp_path / "root")
    storage = Wrapper(inner)
    rig = Rig(storage)
    rig.fill(1)
    with pytest.raises(CommitUnknownError):
        with rig.open() as store:
            draft = rig.draft(store)
            storage.hooks = _lose_reply(f"catalog/{store._catalog.state.head + 1:020d}")
            if way == "draft":
                with draft:
                    store.commit(draft)
            else:
                store.commit(draft)
    storage.hooks = {}
    with rig.open() as store:
        assert store.current.checkpoint == draft.checkpoint
    assert rig.verify().ok


@pytest.mark.parametrize("operation", ["stat", "get_range"])
def test_a_network_error_during_recovery_is_not_taken_for_damage(operation):
    """A store that does not answer raises: it never makes recovery abandon the newest checkpoint."""
    storage = Wrapper(MemoryStorage())
    rig = Rig(storage)
    rig.fill(2)

    def fail(real, path, *args):
        if ".delta" in path:
            raise StorageError("no route", kind="unreachable", retryable=True)
        return real(path, *args)

    storage.hooks = {operation: fail}
    with pytest.raises(StorageError) as caught:
        rig.open()
    assert caught.value.kind == "unreachable"
    storage.hooks = {}
    with rig.open() as store:
        assert store.current.epoch == 1
        assert not any(entry.abandoned for entry in store.list())


def test_a_network_error_during_a_rebuild_leaves_no_checkpoint_out():
    """What cannot be asked is not missing: the rebuild stops instead of dropping it."""
    inner = MemoryStorage()
    storage = Wrapper(inner)
    rig = Rig(storage)
    rig.fill(2)
    for entry in [*inner.list("shop/catalog")]:
        inner.delete(entry.path)

    def fail(real, path, *args):
        if ".delta" in path:
            raise StorageError("no route", kind="unreachable", retryable=True)
        return real(path, *args)

    storage.hooks = {"stat": fail}
    with pytest.raises(StorageError):
        holdfast.checkpoint.rebuild_catalog(storage, "shop")
    storage.hooks = {}
    assert len(holdfast.checkpoint.rebuild_catalog(storage, "shop").take) == 2


def test_a_bad_sector_in_a_state_file_is_damage_and_recovery_falls_back():
    """An I/O error of the disk on one file is the loss of that file, not of the whole store."""
    storage = Wrapper(MemoryStorage())
    rig = Rig(storage)
    first, second = rig.fill(2)

    def fail(real, path, *args):
        if second.checkpoint in path and ".delta" in path:
            raise StorageError("bad sector", kind="io_error")
        return real(path, *args)

    storage.hooks = {"get_range": fail}
    with rig.open() as store:
        assert store.current.checkpoint == first.checkpoint


def test_undoing_a_rollback_survives_a_restart(rig):
    """Going back and then forward again is as durable as going back was."""
    first, second, third = rig.fill(3)
    rig.open(resume=first.checkpoint).close()
    with rig.open(resume=third.checkpoint) as store:
        assert store.current.checkpoint == third.checkpoint
    with rig.open() as store:
        assert store.current.checkpoint == third.checkpoint
        assert [entry.abandoned for entry in store.list()] == [False, False, False]


def test_undoing_a_rollback_also_brings_back_the_tokens_that_wait(rig):
    """The sink of a checkpoint that is resumed, and of those before it, is rolled forward."""
    summaries = rig.fill(3, settle=False)
    rig.open(resume=summaries[0].checkpoint).close()
    with rig.open(resume=summaries[2].checkpoint) as store:
        assert [t.epoch for t in store.recovery.roll_forward] == [0, 1, 2]
        assert [t.epoch for t in store.pending()] == [0, 1, 2]


def test_going_back_to_one_branch_abandons_the_other(rig):
    """Of two branches only the one that is resumed stays a candidate, however old its rival is."""
    first, second = rig.fill(2)
    rig.offset = 10
    with rig.open(resume=first.checkpoint) as store:
        third = rig.commit(store)
    rig.open(resume=second.checkpoint).close()
    with rig.open(resume=third.checkpoint) as store:
        abandoned = {e.checkpoint for e in store.list() if e.abandoned}
    assert abandoned == {second.checkpoint}


def test_a_rebuilt_catalog_does_not_revive_an_abandoned_branch(rig):
    """Checkpoints that are no ancestors of the newest one come back as abandoned."""
    first, second = rig.fill(2, settle=False)
    rig.offset = 10
    with rig.open(resume=first.checkpoint) as store:
        third = rig.commit(store)
    for path in (rig.home / "catalog").iterdir():
        path.unlink()
    holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop")
    with rig.open() as store:
        assert store.current.checkpoint == third.checkpoint
        assert {e.checkpoint for e in store.list() if e.abandoned} == {second.checkpoint}
        assert [token.epoch for token in store.pending()] == [0]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.set_operator("totals", trace="latest", rows=1.5),
        lambda d: d.set_operator("totals", trace="heap"),
        lambda d: d.stage_sink("out", "t", replay="maybe"),
        lambda d: d.stage_sink("out", b"bytes", replay="none"),
        lambda d: d.set_watermark("noon"),
        lambda d: d.set_properties({"a": 1}),
        lambda d: d.set_properties({"a": "\ud800"}),
        lambda d: d.stage_sink("out", "\ud800", replay="none"),
        lambda d: d.add_processed(0.5),
        lambda d: d.set_log("here"),
        lambda d: d.set_source("orders", "here"),
        lambda d: d.set_source("orders", at(99), watermark_us="x"),
        lambda d: d.put_small("counter", "text"),
        lambda d: d.add_file(FileEntry(path=1, size=1, sha256="", kind="delta", operator="totals")),
    ],
)
def test_a_checkpoint_that_could_not_be_read_again_is_never_committed(rig, spoil):
    """A value of the wrong type is refused when it is given, not found by the next recovery."""
    rig.fill(1)
    with rig.open() as store:
        draft = rig.draft(store)
        with pytest.raises(InvalidInputError):
            spoil(draft)
            store.commit(draft)
    assert rig.verify().ok
    with rig.open() as store:
        assert store.current.epoch == 0


def test_a_fifo_in_the_store_does_not_hang_a_reader(rig):
    """A named pipe where a document should be is refused at once."""
    rig.fill(1)
    (rig.home / "holdfast.json").unlink()
    os.mkfifo(rig.home / "holdfast.json")
    outcome = []

    def read():
        try:
            rig.reader()
        except HoldfastError as error:
            outcome.append(error.kind)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(5)
    assert outcome == ["not_regular"]


def test_a_giant_record_number_is_a_gap_and_costs_no_memory(rig):
    """A stray file with the highest possible number is reported, quickly."""
    rig.fill(1)
    stray = record_path(rig, 2**63 - 1)
    stray.write_bytes(b"{}")
    with pytest.raises(CorruptionError) as caught:
        rig.reader().list()
    assert caught.value.kind == "catalog_gap"
    stray.unlink()
    foreign = rig.home / "catalog" / f"{10**20 - 1}.json"
    foreign.write_bytes(b"{}")
    assert len(rig.reader().list()) == 1


def test_a_record_with_a_negative_base_is_corrupt(rig):
    """A forged base cannot make a reader count from far below zero."""
    rig.fill(1)
    path = record_path(rig, 1)
    path.write_bytes(forge(path.read_bytes(), base=-(10**15)))
    with pytest.raises(CorruptionError) as caught:
        parse_record(path.read_bytes(), "record", 1)
    assert caught.value.kind == "impossible_base"
    assert not rig.verify().ok


def test_a_crash_after_the_lock_and_before_the_header_can_be_opened_again(rig):
    """A directory with nothing but our own lock is a pipeline that never began."""

    def die(name):
        if name == "open.before_header":
            os._exit(9)

    child = os.fork()
    if child == 0:
        with failpoints.failpoint_handler(die):
            rig.open()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert [path.name for path in rig.home.iterdir()] == ["lock"]
    rig.fill(1)
    assert rig.verify().ok


def test_a_pin_that_races_with_a_delete_is_kept_or_refused_but_never_dangles(rig):
    """A savepoint confirmed before the drop record puts its checkpoint back."""
    rig.fill(3)
    with rig.open() as store:
        victim = store.list()[1]

        def meanwhile(name):
            if name == "delete.before_record":
                store.pin("late", victim.checkpoint)

        with failpoints.failpoint_handler(meanwhile), pytest.raises(RefusedError):
            store.delete(victim.checkpoint)
    assert "pin_dangles" not in {f.kind for f in rig.verify().all_findings()}
    assert rig.reader().manifest("late").checkpoint == victim.checkpoint


def test_a_file_that_no_checkpoint_has_cannot_be_inherited(rig):
    """An inventory entry of elsewhere is looked at before it is committed."""
    rig.fill(1)
    with rig.open() as store:
        draft = rig.draft(store)
        known = store.current.files[0]
        draft.inherit(
            FileEntry(
                path=known.path.replace("partition-00000", "partition-00009"), size=known.size,
                sha256=known.sha256, kind="snapshot", operator="totals", partition=9,
            )
        )  # fmt: skip
        with pytest.raises(CorruptionError) as caught:
            store.commit(draft)
        assert caught.value.kind == "inherited_file_differs"
    assert rig.verify().ok


def test_a_listing_that_is_older_than_a_compaction_is_read_again():
    """A reader that races with a compaction lists again instead of crying gap."""

    class Crash(BaseException):
        pass

    def die(name):
        if name == "compact.after_first_delete":
            raise Crash

    inner = MemoryStorage()
    rig = Rig(inner)
    with rig.open() as store:
        for _ in range(3):
            rig.commit(store)
        before = [*inner.list("shop/catalog")]
        with failpoints.failpoint_handler(die), pytest.raises(Crash):
            store.compact()
    served = []

    def once(real, prefix):
        if prefix.endswith("catalog") and not served:
            served.append(True)
            return iter(before[1:])  # the deletes have begun, the base is not in this page yet
        return real(prefix)

    reader = holdfast.checkpoint.read_store(Wrapper(inner, {"list": once}), "shop")
    assert len(reader.list()) == 3


@pytest.mark.parametrize("kind", ["symlink", "newer", "unreadable"])
def test_verification_reports_a_manifest_that_it_may_not_read(tmp_path, kind):
    """A link, a newer format and a disk error are findings of `verify`, never a crash."""
    storage = Wrapper(LocalStorage(tmp_path / "root"))
    rig = Rig(storage)
    first, second = rig.fill(2)
    path = tmp_path / "root" / "shop" / "checkpoints" / second.checkpoint / "manifest.json"
    if kind == "symlink":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "newer":
        path.write_bytes(forge(path.read_bytes(), format=3))
    else:

        def fail(real, wanted, **kwargs):
            if second.checkpoint in wanted:
                raise StorageError("bad sector", kind="io_error")
            return real(wanted, **kwargs)

        storage.hooks = {"get": fail}
    report = rig.verify(deep=False)
    assert not report.ok
    assert report.by_checkpoint[second.checkpoint]
    assert not report.by_checkpoint[first.checkpoint]


def test_a_file_that_cannot_be_opened_is_a_finding(tmp_path):
    """An error of the system while hashing names the file instead of ending the verification."""

    class Denied(LocalStorage):
        def local_path(self, path):
            return tmp_path  # opening a directory fails like a denied file does

    rig = Rig(tmp_path / "root")
    rig.fill(1)
    reader = holdfast.checkpoint.read_store(Denied(tmp_path / "root"), "shop")
    report = holdfast.checkpoint.verify_store(reader, deep=True)
    assert not report.ok
    assert {finding.kind for finding in report.all_findings()} == {"os_error"}


def test_the_footprint_counts_the_outcomes_that_go_with_a_checkpoint(rig):
    """What deleting frees is files, manifest and outcomes, measured on the disk."""
    rig.fill(3)
    with rig.open() as store:
        victim = store.list()[1]
        (before,) = [
            f
            for f in holdfast.checkpoint.footprints(store.reader)
            if f.checkpoint == victim.checkpoint
        ]
        bytes_before = disk_bytes(rig.home)
        store.delete(victim.checkpoint)
        record = record_path(rig, store._catalog.state.head).stat().st_size
        assert bytes_before - disk_bytes(rig.home) + record == before.exclusive


def test_a_clock_that_was_set_back_does_not_take_away_the_age_protection(rig):
    """A checkpoint that seems to come from the future is young, not old."""
    settings = Settings(retain=2, retain_age_ms=3_600_000)
    with rig.open(settings=settings) as store:
        for _ in range(4):
            rig.commit(store)
        rig.clock.step_wall_ms(-600_000)
        assert store.retain().dropped == ()


def test_gtid_sets_are_compared_as_sets_and_not_as_spellings():
    """Adjacent, unordered and overlapping intervals mean the numbers in them."""
    server = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    for spelling in ("1-3:4-5", "4-5:1-3", "1-4:2-5", "1:2:3:4:5"):
        same = MysqlPosition(gtids=[f"{server}:{spelling}"])
        assert compare(same, MysqlPosition(gtids=[f"{server}:1-5"])) == "equal"
    assert compare(MysqlPosition(gtids=[f"{server}:1-3:5"]), same) == "before"


def test_two_journals_with_different_history_diverge():
    """The same sequence with another chain hash is another history."""
    here = JournalPosition(journal="j", segment=0, offset=8, sequence=3, chain="a" * 64)
    there = JournalPosition(journal="j", segment=0, offset=8, sequence=3, chain="b" * 64)
    assert compare(here, there) == "diverged"


@pytest.mark.parametrize("partition", ["01", "٣", "-1", "", "x"])
def test_a_kafka_partition_has_one_spelling(partition):
    """Two spellings of one partition would be two places in it."""
    with pytest.raises(InvalidInputError):
        holdfast.checkpoint.KafkaPosition(topics={"t": {partition: 1}})


def test_the_watermark_of_a_source_is_kept_and_cannot_go_back(rig):
    """A source that is set without a watermark keeps it; one that goes back is refused."""
    with rig.open() as store:
        rig.commit(store, watermark_us=500)
        rig.commit(store)
        assert store.current.source("orders").watermark_us == 500
        draft = rig.draft(store)
        draft.set_source("orders", at(rig.offset), watermark_us=499)
        with pytest.raises(InvalidInputError) as caught:
            store.commit(draft)
        assert caught.value.kind == "watermark_regressed"


def test_a_number_of_vnodes_that_is_not_supported_never_gets_a_header(rig):
    """A store that could never be used is not begun."""
    wrong = holdfast.checkpoint.Topology(parts=shop().parts, vnodes=7)
    with pytest.raises(IncompatibleError) as caught:
        rig.open(topology=wrong)
    assert caught.value.kind == "vnodes_differ"
    assert not rig.home.exists()


def test_a_bad_name_does_not_create_the_root(tmp_path):
    """A refused opening leaves no directory behind."""
    with pytest.raises(InvalidInputError):
        holdfast.checkpoint.open_store(tmp_path / "new", "../shop", topology=shop())
    assert not (tmp_path / "new").exists()


def test_opening_and_closing_leaks_no_descriptor(rig):
    """A process that opens stores for years does not run out of files."""
    rig.fill(1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        rig.open().close()
        rig.reader().list()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_a_draft_creates_only_files_that_a_manifest_may_name(rig):
    """A name that no rule knows would stay on the disk for ever."""
    with rig.open() as store:
        draft = store.draft()
        for name in ("evil.txt", "manifest.json", "operators/../../../x", "operators/totals/x"):
            with pytest.raises(InvalidInputError):
                draft.create(f"checkpoints/{draft.checkpoint}/{name}")


def test_an_outcome_of_an_epoch_that_the_catalog_forgot_is_proof_of_damage(rig):
    """A lost newest record is noticed by what its sink has published, and is not run again."""
    rig.fill(1, replay="none")
    with rig.open() as store:
        lost = rig.commit(store, replay="none")
    record_path(rig, lost.sequence).unlink()
    with pytest.raises(RefusedError) as caught:
        rig.open()
    assert caught.value.kind == "unsafe_fallback"
    assert not rig.verify().ok
    plan = holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop")
    assert lost.checkpoint in {found.summary.checkpoint for found in plan.take}
    with rig.open() as store:
        assert store.current.checkpoint == lost.checkpoint


def test_a_sink_error_with_odd_characters_is_recorded_and_not_hidden(rig):
    """An error text that is not UTF-8 does not replace the sink's own error."""

    class Sink:
        def commit(self, token):
            raise ValueError("bad-\udcff-name")

    with rig.open() as store:
        rig.commit(store, settle=False)
        with pytest.raises(StorageError) as caught:
            store.publish_pending({"out": Sink()})
        assert caught.value.kind == "sink_failed"
        assert store.pending()[0].status == "failed"


def test_a_foreign_file_with_an_undecodable_name_is_reported(rig):
    """A name that is no text can be shown, encoded as JSON, and stays where it is."""
    rig.fill(1)
    odd = os.fsencode(rig.home) + b"/odd-\xff"
    with open(odd, "wb") as file:
        file.write(b"x")
    report = rig.verify()
    assert report.ok
    assert [f.kind for f in report.all_findings()] == ["foreign"]
    import msgspec

    msgspec.json.encode(report.all_findings())
    with rig.open() as store:
        store.gc()
    assert os.path.exists(odd)


def test_age_and_settings_do_not_matter_to_a_store_without_checkpoints(rig):
    """Retention on an empty store is a plan with nothing in it."""
    with rig.open(settings=RELAXED) as store:
        assert store.retain().dropped == ()
        assert store.gc().deleted == 0
        with pytest.raises(NotFoundError):
            store.delete("latest")
        assert manifest_path(rig, "0198c0de-0000-7000-8000-000000000000").exists() is False
