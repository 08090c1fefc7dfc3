"""Every system call of the journal fails in turn, in every scenario.

The calls are not listed here: while a scenario runs, every function of `os` (and `mmap`, `flock`)
that the journal's code calls is counted, wherever it is called from, so a new call is covered as
soon as it is written. Each is then made to fail, once or from then on.

The rule: no hang, no error that is not a `HoldfastError`, no thread that dies, and what was
acknowledged is there when the journal is opened again without faults.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

import holdfast.journal
from holdfast.errors import CommitUnknownError, HoldfastError
from holdfast.journal import (
    Durability,
    JournalReader,
    JournalSettings,
    JournalWriter,
    Query,
    plan_splits,
    read_split,
    verify_journal,
)
from tests.helpers.effort import SOAK
from tests.helpers.programs.journal_child import batch

HOME = str(Path(holdfast.journal.__file__).parent)
# No calls to the disk, or calls that Python itself makes and that cannot fail.
HARMLESS = {
    "getpid", "fspath", "fsencode", "fsdecode", "strerror", "urandom", "uname", "getppid", "_exit",
    "cpu_count", "getcwd", "register_at_fork", "WIFSIGNALED", "get_inheritable", "abort",
}  # fmt: skip
CALLS = sorted(
    name
    for name in dir(os)
    if type(getattr(os, name)).__name__ == "builtin_function_or_method" and name not in HARMLESS
)
CODES = (errno.EIO, errno.ENOSPC, errno.EACCES)
PATIENCE_S = 20


class Faults:
    """Counts the journal's system calls, and lets one of them fail.

    nth: which call (from 0); None only counts. code: an errno, or 0 for a write of one byte less.
    lasting: all later calls of the same name fail as well.
    """

    def __init__(self, nth: int | None = None, code: int = errno.EIO, *, lasting: bool = False):
        self.nth, self.code, self.lasting = nth, code, lasting
        self.calls: list[str] = []
        self.sites: list[tuple] = []
        self.fired: str | None = None
        self._lock = threading.Lock()

    def _site(self) -> tuple:
        """From where in the journal's code, four calls deep; empty if from elsewhere."""
        frame, found = sys._getframe(2), []
        for _ in range(10):  # `pathlib`, `genericpath` and `os` may lie between
            if frame is None or len(found) == 4:
                break
            if frame.f_code.co_filename.startswith(HOME):
                found.append((frame.f_code.co_filename, frame.f_lineno))
            elif not found and "pathlib" not in frame.f_code.co_filename:
                break
            frame = frame.f_back
        return tuple(found)

    def _wrapped(self, name, real):
        def call(*args, **more):
            site = self._site()
            if not site:
                return real(*args, **more)
            with self._lock:
                number = len(self.calls)
                self.calls.append(name)
                self.sites.append((name, *site))
                fail = number == self.nth or (self.lasting and self.fired == name)
                if fail:
                    self.fired = name
            if not fail:
                return real(*args, **more)
            if self.code == 0:
                return self._short(name, real, args, more)
            if name == "close":
                real(*args, **more)  # the descriptor is gone, whatever close says
            raise OSError(self.code, os.strerror(self.code))

        return call

    def _short(self, name, real, args, more):
        if name == "pwritev":
            fd, views, offset = args
            data = b"".join(views)
            return os.pwrite.__wrapped__(fd, data[: len(data) // 2], offset) if len(data) > 1 else 0
        return real(*args, **more)

    @contextlib.contextmanager
    def __call__(self):
        places = [(os, name) for name in CALLS] + [(mmap, "mmap"), (fcntl, "flock")]
        before = [(place, name, getattr(place, name)) for place, name in places]
        for place, name, real in before:
            call = self._wrapped(name, real)
            call.__wrapped__ = real
            setattr(place, name, call)
        try:
            yield self
        finally:
            for place, name, real in before:
                setattr(place, name, real)


def settings(durability):
    return JournalSettings(
        durability=durability, segment_bytes=900, checkpoint_bytes=1500, interval_ms=5
    )


class Acks:
    """What was promised: by batch number its first sequence."""

    def __init__(self):
        self.known: dict[int, int] = {}
        self.unknown: set[int] = set()


def append_some(writer, acks, numbers):
    for number in numbers:
        receipt = writer.append(batch(number))
        if writer.settings.durability is Durability.INTERVAL:
            assert writer.wait_durable(receipt.next_sequence, PATIENCE_S * 1000)
        acks.known[number] = receipt.first_sequence


def appending(durability):
    def run(root, acks):
        with JournalWriter(root, settings(durability)) as writer:
            append_some(writer, acks, range(20, 25))

    return run


def submitting(root, acks):
    with JournalWriter(root, settings(Durability.GROUP)) as writer:
        tickets = [(number, writer.submit(batch(number))) for number in range(20, 24)]
        failed = None
        for number, ticket in tickets:
            try:
                receipt = ticket.wait(PATIENCE_S * 1000)
                assert receipt is not None, "a ticket hangs"
                acks.known[number] = receipt.first_sequence
            except HoldfastError as error:
                failed = error
        if failed is not None:
            raise failed


def upkeep(root, acks):
    with JournalWriter(root, settings(Durability.GROUP)) as writer:
        writer.checkpoint()
        writer.holds.set("r", writer.view().position(9))
        writer.truncate_before(15)
        writer.compact(target_bytes=5000)
        append_some(writer, acks, [20])
        writer.holds.release("r")
        writer.truncate_before(12)
        append_some(writer, acks, [21])


def upkeep_going_on(root, acks):
    """A failed step of upkeep is no reason to stop: the writer goes on, or says that it cannot."""
    failed = None
    with JournalWriter(root, settings(Durability.BATCH)) as writer:
        for number, step in enumerate(
            (
                lambda: writer.compact(target_bytes=5000),
                lambda: writer.truncate_before(9),
                writer.checkpoint,
                lambda: writer.compact(target_bytes=5000),
                lambda: writer.truncate_before(15),
            )
        ):
            try:
                step()
                append_some(writer, acks, [20 + number])
            except HoldfastError as error:
                failed = error
    if failed is not None:
        raise failed


def recovering(root, acks):
    with max((root / "segments").glob("*.seg")).open("ab") as file:
        file.write(b"torn" * 9)
    (root / "index.ckpt").unlink(missing_ok=True)
    with JournalWriter(root, settings(Durability.BATCH)) as writer:
        append_some(writer, acks, [20])


def beginning(root, acks):
    new = root.parent / "new" / "deep"
    with JournalWriter(new, settings(Durability.BATCH)) as writer:
        assert writer.append(batch(0)).first_sequence == 0


def reading(root, acks):
    with JournalReader(root) as reader:
        reader.refresh()
        whole = reader.query(Query()).to_table().num_rows
        view = reader.view()
        start, end = view.position(view.base_sequence), view.position()
        pieces = plan_splits(root, view, start, end)
        assert sum(b.num_rows for p in pieces for b in read_split(p)) == whole
        cursor = reader.cursor("c")
        for _, at in cursor.follow(timeout_ms=0):
            cursor.commit(at)
        assert cursor.position() == end


def verifying(root, acks):
    report = verify_journal(root, deep=True)
    if not report.ok:
        assert all(finding.kind and finding.path for finding in report.findings)
        raise HoldfastError("findings", kind="found")


SCENARIOS = {
    "append, batch": appending(Durability.BATCH),
    "append, group": appending(Durability.GROUP),
    "append, interval": appending(Durability.INTERVAL),
    "submit": submitting,
    "upkeep": upkeep,
    "upkeep going on": upkeep_going_on,
    "recover": recovering,
    "begin": beginning,
    "read": reading,
    "verify": verifying,
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A journal of several segments and 7 batches, all acknowledged."""
    root = tmp_path_factory.mktemp("filled") / "j"
    acks = Acks()
    with JournalWriter(root, settings(Durability.BATCH)) as writer:
        append_some(writer, acks, range(7))
    return root, acks.known


def execute(scenario, root, acks, faults):
    """Run in a thread of its own, so that a hang is seen; returns the error."""
    outcome: list[BaseException | None] = []
    died: list[object] = []
    hook, threading.excepthook = threading.excepthook, died.append

    def body():
        try:
            scenario(root, acks)
            outcome.append(None)
        except BaseException as error:  # noqa: BLE001 - looked at below
            outcome.append(error)

    try:
        with faults():
            thread = threading.Thread(target=body, daemon=True)
            thread.start()
            thread.join(PATIENCE_S * 2)
        assert outcome, f"hangs after {faults.fired}"
    finally:
        threading.excepthook = hook
    assert not died, [str(one) for one in died]
    return outcome[0]


def check(root, acks, before, why):
    """Nothing acknowledged is gone; no batch is there in part; the journal goes on."""
    with JournalWriter(root, settings(Durability.BATCH)) as writer:
        view = writer.view()
        found: dict[int, list] = {}
        for event in view.query(Query()).events():
            found.setdefault((event.id.int - 1) // 3, []).append(event)
        for number, events in found.items():
            assert [e.entity for e in events] == [e.entity for e in batch(number)], why
        for number, sequence in {**before, **acks.known}.items():
            gone = sequence < view.base_sequence
            assert gone or found[number][0].sequence == sequence, (why, number)
        assert writer.append(batch(500)).first_sequence == view.visible, why
    report = verify_journal(root, deep=True)
    assert report.ok, (why, report.findings)


def variants(faults):
    """(nth, code, lasting): every call with every error in a soak, otherwise every place once."""
    codes = (*CODES, 0)
    if SOAK:
        for nth in range(len(faults.calls)):
            for code in codes:
                yield nth, code, False
                yield nth, code, True
        return
    seen = set()
    for nth, site in enumerate(faults.sites):
        if site not in seen:
            seen.add(site)
            code = codes[len(seen) % (4 if site[0] == "pwritev" else 3)]
            yield nth, code, len(seen) % 2 == 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_failing_call_is_typed_and_loses_nothing(tmp_path, filled, name):
    """Each system call in turn fails: typed or harmless, never a hang, nothing acknowledged lost."""
    origin, before = filled
    counting, fired = Faults(), 0
    shutil.copytree(origin, tmp_path / "count" / "j")
    assert execute(SCENARIOS[name], tmp_path / "count" / "j", Acks(), counting) is None
    assert len(counting.calls) > 10
    chosen = list(variants(counting))
    for nth, code, lasting in chosen:
        why = (name, nth, counting.calls[nth], errno.errorcode.get(code), lasting)
        root = tmp_path / f"{nth}-{code}" / "j"
        shutil.copytree(origin, root)
        faults, acks = Faults(nth, code, lasting=lasting), Acks()
        error = execute(SCENARIOS[name], root, acks, faults)
        assert error is None or isinstance(error, HoldfastError), (why, repr(error))
        assert error is None or error.kind != "internal", (why, error)
        fired += faults.fired is not None
        check(root, acks, before, why)
        shutil.rmtree(root.parent)
    assert fired > len(chosen) // 2


def test_the_counting_sees_every_call_that_changes_something():
    """The net is wide enough: what a journal must call is among the calls that can fail."""
    needed = {"open", "pwritev", "pread", "fsync", "fdatasync", "rename", "unlink", "ftruncate",
              "mkdir", "scandir", "lstat", "fstat", "close"}  # fmt: skip
    assert needed <= set(CALLS)


@pytest.mark.parametrize("durability", Durability)
def test_a_mark_that_cannot_be_written_fails_no_append(tmp_path, durability):
    """The mark is a hint: with a durable batch the append succeeds, and the mark is mended."""
    root = tmp_path / "j"
    with JournalWriter(root, settings(durability)) as writer:
        writer.append(batch(0))
        writer.flush()
        with faulty_mark():
            receipt = writer.append(batch(1))
            assert writer.wait_durable(receipt.next_sequence, 5_000)
            with JournalReader(root) as reader:
                assert reader.view().visible == 3
        assert writer.index_failures
        assert writer.append(batch(2)).first_sequence == 6
        until = time.monotonic() + 5
        while time.monotonic() < until:
            with JournalReader(root) as reader:
                if reader.view().visible == 9:
                    break
        assert reader.view().visible == 9


def test_a_mark_is_mended_without_another_append(tmp_path):
    """Readers of other processes see the batch, though nothing more is ever appended."""
    root = tmp_path / "j"
    with JournalWriter(root, settings(Durability.GROUP)) as writer:
        with faulty_mark():
            writer.append(batch(0))
            time.sleep(0.03)
        until = time.monotonic() + 5
        seen = 0
        while seen < 3 and time.monotonic() < until:
            with JournalReader(root) as reader:
                seen = reader.view().visible
        assert seen == 3


@contextlib.contextmanager
def faulty_mark():
    real = os.pwritev

    def pwritev(fd, views, offset):
        if sum(map(len, views)) == 32 and offset == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, views, offset)

    os.pwritev = pwritev
    try:
        yield
    finally:
        os.pwritev = real


@contextlib.contextmanager
def failing(name, code=errno.EIO):
    real = getattr(os, name)

    def call(*_, **__):
        raise OSError(code, os.strerror(code))

    setattr(os, name, call)
    try:
        yield
    finally:
        setattr(os, name, real)


def test_a_failed_sync_of_an_interval_is_heard_by_everybody(tmp_path):
    """The sync thread's fsync fails: appends, waiters and close all say so, at once."""
    writer = JournalWriter(tmp_path / "j", settings(Durability.INTERVAL))
    with failing("fdatasync"):
        receipt = writer.append(batch(0))
        with pytest.raises(CommitUnknownError) as caught:
            writer.wait_durable(receipt.next_sequence)
        assert caught.value.kind == "durability_unknown"
    for call in (
        lambda: writer.append(batch(1)),
        lambda: writer.wait_durable(99),
        writer.flush,
        writer.checkpoint,
        writer.close,
    ):
        start = time.monotonic()
        with pytest.raises(HoldfastError):
            call()
        assert time.monotonic() - start < 1
    with JournalWriter(tmp_path / "j") as again:
        assert again.append(batch(0)).first_sequence == 0


def test_an_untyped_failure_in_the_sync_thread_is_heard_too(tmp_path, monkeypatch):
    """Whatever stops a thread of the writer, nobody waits for it."""
    writer = JournalWriter(tmp_path / "j", settings(Durability.INTERVAL))

    def broken():
        raise MemoryError

    monkeypatch.setattr(writer, "flush", broken)
    receipt = writer.append(batch(0))
    with pytest.raises(CommitUnknownError):
        writer.wait_durable(receipt.next_sequence, 5_000)
    with pytest.raises(HoldfastError):
        writer.append(batch(1))
    with pytest.raises(CommitUnknownError):
        writer.close()


@pytest.mark.parametrize("durability", Durability)
def test_closing_on_a_full_disk_claims_no_failure(tmp_path, durability):
    """The index checkpoint is derived: that it cannot be written is noted, and no error."""
    writer = JournalWriter(tmp_path / "j", settings(durability))
    writer.append(batch(0))
    writer.flush()
    with failing("pwritev", errno.ENOSPC):
        writer.close()
    assert any("disk is full" in note for note in writer.index_failures)
    with JournalWriter(tmp_path / "j") as again:
        assert again.append(batch(0)).duplicate


def test_an_interrupted_producer_leaves_no_hole(tmp_path):
    """A thread that is interrupted while it waits for its turn does not stop the others."""
    writer = JournalWriter(tmp_path / "j", settings(Durability.GROUP))
    ticket = writer._prepare(batch(0))
    ticket.gate = threading.Lock()
    ticket.gate.acquire()
    with writer._changed:
        writer._leading = True
        writer._queue.append(ticket)
    writer._hand_over()  # to somebody who was interrupted just now
    writer._abandon(ticket, ticket.gate)
    done = []
    thread = threading.Thread(target=lambda: done.append(writer.append(batch(1))), daemon=True)
    thread.start()
    thread.join(5)
    assert done, "nobody leads"
    assert done[0].first_sequence == 0
    writer.close()


def test_a_disk_that_writes_nothing_is_an_error_and_no_hang(tmp_path):
    """A write of no bytes, again and again, ends in a typed error; nothing was appended."""
    writer = JournalWriter(tmp_path / "j", settings(Durability.GROUP))
    caught, real, tries = [], os.pwritev, []

    def pwritev(*_):
        tries.append(1)
        if len(tries) > 1_000:
            raise SystemExit  # ends the thread of a writer that would try for ever
        return 0

    def produce():
        try:
            writer.append(batch(0))
        except BaseException as error:  # noqa: BLE001 - looked at below
            caught.append(error)

    os.pwritev = pwritev
    try:
        thread = threading.Thread(target=produce, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
    finally:
        os.pwritev = real
    assert isinstance(caught[0], HoldfastError)
    assert writer.append(batch(0)).first_sequence == 0
    writer.close()


def test_nothing_is_done_with_a_closed_writer(tmp_path):
    """After closing, another may own the journal: no call touches it any more."""
    writer = JournalWriter(tmp_path / "j")
    writer.append(batch(0))
    writer.close()
    for call in (
        writer.checkpoint,
        writer.flush,
        writer.compact,
        lambda: writer.truncate_before(0),
        lambda: writer.append(batch(1)),
    ):
        with pytest.raises(HoldfastError) as caught:
            call()
        assert caught.value.kind == "journal_closed"
    assert writer.wait_durable(99) is False


def test_a_failed_truncation_leaves_a_writer_that_knows_its_base(tmp_path):
    """The new base is durable, a file cannot be removed: the writer goes on from the new base."""
    root = tmp_path / "j"
    with JournalWriter(root, settings(Durability.BATCH)) as writer:
        append_some(writer, Acks(), range(7))
        real = os.unlink

        def unlink(path):
            if str(path).endswith(".seg"):
                raise OSError(errno.EACCES, "no")
            real(path)

        os.unlink = unlink
        try:
            with pytest.raises(HoldfastError):
                writer.truncate_before(15)
        finally:
            os.unlink = real
        view = writer.view()
        assert view.base_sequence > 0
        assert view.segments[0].first_sequence == view.base_sequence
        assert view.query(Query()).events()[0].sequence == view.base_sequence
    assert verify_journal(root).ok


def test_a_compaction_that_fails_half_way_stops_the_writer(tmp_path):
    """The merged segment may be in place: truncating by the old list would lose what is in it."""
    root = tmp_path / "j"
    with JournalWriter(root, settings(Durability.BATCH)) as writer:
        append_some(writer, Acks(), range(7))
        real = os.fsync

        def fsync(fd):
            if os.path.isdir(f"/proc/self/fd/{fd}") and fsync.renamed:
                raise OSError(errno.EIO, "no")
            real(fd)

        rename = os.rename

        def renamed(*args):
            rename(*args)
            fsync.renamed = str(args[1]).endswith(".seg")

        fsync.renamed = False
        os.fsync, os.rename = fsync, renamed
        try:
            with pytest.raises(HoldfastError):
                writer.compact(target_bytes=5000)
        finally:
            os.fsync, os.rename = real, rename
        with pytest.raises(HoldfastError) as caught:
            writer.truncate_before(15)
        assert caught.value.kind == "writer_poisoned"
    check(root, Acks(), {n: 3 * n for n in range(7)}, "compaction")
