"""Readers and verification, with a writer's whole work at each of their moments."""

import shutil
from pathlib import Path

import pytest

from holdfast.clock import ManualClock
from holdfast.errors import NotFoundError
from holdfast.journal import HoldStore, JournalReader, Query, verify_journal
from holdfast.journal.files import JournalFiles
from holdfast.journal.format.layout import Layout
from tests.helpers.journals import fill, open_writer, some

READS = ("entries", "map", "open_read", "read", "read_at", "size")


class Unsynced(JournalFiles):
    """Nothing here is about power cuts: syncing would only take time."""

    def sync(self, fd, path):
        del fd, path

    def sync_data(self, fd, path):
        del fd, path

    def sync_directory(self, path):
        del path


class WatchedFiles(Unsynced):
    """Calls `hook` before every call that reads or changes something."""

    hook = None

    def _do(self, operation, path, call, *args):
        self.moment()
        return super()._do(operation, path, call, *args)

    def moment(self):
        if self.hook is not None:
            self.hook()


def _watched(name):
    inner = getattr(JournalFiles, name)

    def call(self, *args, **more):
        self.moment()
        return inner(self, *args, **more)

    return call


for _name in READS:
    setattr(WatchedFiles, _name, _watched(_name))


def at_every_moment(tmp_path, work, other):
    """Run `other` before the n-th call of `work`, for every n, each time on a fresh journal."""
    fill(tmp_path / "0")
    for stop in range(1, 1_000):
        root = Path(shutil.copytree(tmp_path / "0", tmp_path / f"{stop}"))
        with open_writer(root, files=Unsynced(), segment_bytes=2000) as writer:
            files, seen = WatchedFiles(), []

            def hook(files=files, seen=seen, writer=writer, stop=stop):
                seen.append(True)
                if len(seen) == stop:
                    files.hook = None
                    other(writer)
                    files.hook = hook

            work(root, files, hook)
            files.hook = None
        assert verify_journal(root, deep=True).ok
        if len(seen) < stop:
            assert stop > 5
            return
    pytest.fail("the work never ran through undisturbed")


def append(writer):
    for number in range(3):
        writer.append(some(5, start=1_000 + 5 * number))


def truncate(writer):
    writer.truncate_before(20)


def compact(writer):
    writer.compact(target_bytes=100_000)


def everything(writer):
    append(writer)
    truncate(writer)
    compact(writer)


def whole(sequences):
    assert sequences == list(range(sequences[0], sequences[-1] + 1))
    assert sequences[-1] >= 39


def query(root, files, hook):
    files.hook = hook
    found = JournalReader(root, files=files).query(Query())
    whole([n for batch in found.batches for n in batch.column(0).to_pylist()])


def follow(root, files, hook):
    reader = JournalReader(root, files=files)
    files.hook = hook
    found = []
    try:
        for batch, _ in reader.follow(timeout_ms=1, poll_ms=1):
            found += batch.column(0).to_pylist()
    except NotFoundError as error:
        assert error.kind == "position_truncated"  # it stood where the log was cut away
    else:
        whole(found)


def verify(root, files, hook):
    files.hook = hook
    report = verify_journal(root, deep=True, files=files)
    assert report.ok, report.findings


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    "other",
    [append, everything, pytest.param(truncate, marks=SOAK), pytest.param(compact, marks=SOAK)],
)
@pytest.mark.parametrize("work", [query, follow, verify])
def test_a_writer_at_work_is_not_taken_for_damage(tmp_path, work, other):
    """Whatever a writer appends, cuts off or merges meanwhile, readers see a whole log."""
    at_every_moment(tmp_path, work, other)


def test_what_is_damaged_stays_damaged_beside_a_writer(tmp_path):
    """A second look forgives only what has changed: a flipped byte is found, in bounded time."""
    from holdfast.errors import CorruptionError

    fill(tmp_path)
    segment = min((tmp_path / "segments").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[200] ^= 1
    segment.write_bytes(data)
    (tmp_path / "index.ckpt").unlink()
    assert not verify_journal(tmp_path).ok
    with pytest.raises(CorruptionError):
        JournalReader(tmp_path)


def test_a_file_that_vanishes_from_a_listing_takes_no_other_with_it(tmp_path, monkeypatch):
    """One hold that is renamed while holds are listed must not make truncation forget the rest."""
    import os

    fill(tmp_path)
    with open_writer(tmp_path, segment_bytes=2000) as writer:
        position = writer.view().position(5)
        writer.holds.set("pipeline", position)
        scan = os.scandir

        def with_a_ghost(path):
            listing = scan(path)
            if str(path).endswith("holds"):
                ghost = tmp_path / "holds" / "new.hold.tmp"
                ghost.write_bytes(b"")
                listing.close()
                listing = scan(path)
                kept = [*listing]
                ghost.unlink()
                return _Listing(kept)
            return listing

        monkeypatch.setattr(os, "scandir", with_a_ghost)
        report = writer.truncate_before(30)
    assert report.held_by == "pipeline"
    assert report.base_sequence <= 5


class _Listing(list):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None


@pytest.mark.parametrize("first", ["hold", "truncation"])
def test_a_hold_that_was_confirmed_holds(tmp_path, first):
    """Set beside a truncation, a hold is refused or respected, never confirmed and ignored."""
    outcomes = set()
    fill(tmp_path / "0")
    for stop in range(1, 200):
        root = Path(shutil.copytree(tmp_path / "0", tmp_path / f"{stop}"))
        files, seen, confirmed = WatchedFiles(), [], []
        mine = Unsynced() if first == "hold" else files
        with open_writer(root, segment_bytes=2000, files=mine) as writer:
            position = writer.view().position(5)

            def hold(through, root=root, position=position, confirmed=confirmed):
                try:
                    HoldStore(through, Layout(root), ManualClock()).set("late", position)
                    confirmed.append(True)
                except NotFoundError as error:
                    assert error.kind == "position_truncated"

            def hook(files=files, seen=seen, writer=writer, stop=stop, hold=hold):
                seen.append(True)
                if len(seen) == stop:
                    files.hook = None
                    hold(Unsynced()) if first == "truncation" else writer.truncate_before(30)

            files.hook = hook
            writer.truncate_before(30) if first == "truncation" else hold(files)
            files.hook = None
            assert not confirmed or writer.view().base_sequence <= 5
        assert verify_journal(root, deep=True).ok
        outcomes.add(bool(confirmed))
        if len(seen) < stop:
            break
    assert outcomes == {True, False}
