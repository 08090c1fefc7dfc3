"""Crashes: at every named point, by kill -9 at random, by the k-th failing call, by power cut.

The rule is always the same: every acknowledged batch is there, no half batch is visible, and the
journal opens again and goes on.
"""

import os
import random
import signal
import subprocess
import sys
import time
import uuid

import pytest

from holdfast import failpoints
from holdfast.clock import ManualClock
from holdfast.errors import HoldfastError
from holdfast.journal import (
    Durability,
    JournalReader,
    JournalSettings,
    JournalWriter,
    Query,
    SeededEventIds,
    verify_journal,
)
from holdfast.testing.journal import FaultyFiles, PowerCutFiles
from tests.helpers.effort import SOAK
from tests.helpers.paths import PROGRAMS, child_environment
from tests.helpers.programs.journal_child import SIZE, batch

ENV = child_environment()
ALL = sorted(point for point in failpoints.FAILPOINTS if point.startswith("journal_"))


def child(root, batches, point="", occurrence=1):
    command = [
        sys.executable,
        str(PROGRAMS / "journal_child.py"),
        str(root),
        str(batches),
        point,
        str(occurrence),
    ]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, text=True
    )


def acknowledged(text):
    return {
        int(line.split()[1]): int(line.split()[2])
        for line in text.splitlines()
        if line.startswith("ack ") and len(line.split()) == 3
    }


def check(root, acks, seed=""):
    """Every acknowledged batch that was not truncated is there whole; no other is there in part."""
    if not (root / "journal.meta").exists():
        assert not acks, seed
        return 0
    with JournalWriter(root, JournalSettings(segment_bytes=900)) as writer:
        view = writer.view()
        found = {}
        for event in view.query(Query()).events():
            number = (event.id.int - 1) // SIZE
            found.setdefault(number, []).append(event)
        for number, events in found.items():
            whole = [(e.entity, e.payload) for e in batch(number)]
            assert [(e.entity, e.payload) for e in events] == whole, (seed, number)
            assert acks.get(number, events[0].sequence) == events[0].sequence, (seed, number)
        for number, sequence in acks.items():
            assert sequence < view.base_sequence or number in found, (seed, number)
        sequences = [e.sequence for n in sorted(found) for e in found[n]]
        assert sequences == list(range(view.base_sequence, view.visible)), seed
        last = max(found, default=-1)
        assert writer.append(batch(last + 1)).first_sequence == view.visible, seed
    report = verify_journal(root, deep=True)
    assert report.ok, (seed, report.findings)
    return view.visible


def test_the_script_reaches_every_point(tmp_path):
    """A point that no run reaches would be a hole in the matrix; open points need a torn journal."""
    process = child(tmp_path / "j", 20)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    reached = set(out.splitlines()[-1].split()[1:])
    assert set(ALL) - reached <= {"journal_open.after_cut", "journal_open.after_sync"}


@pytest.mark.parametrize(
    ("point", "occurrence"),
    [
        (point, visit)
        for number, point in enumerate(ALL)
        for visit in (range(1, 12) if SOAK else [(1, 4)[number % 2]])
    ],
)
def test_dying_at_every_point_loses_nothing_acknowledged(tmp_path, point, occurrence):
    """Die hard at a point; the survivors are whole, and a second run goes on to the end."""
    root = tmp_path / "j"
    if point.startswith("journal_open."):
        process = child(root, 4)
        out, err = process.communicate(timeout=60)
        acks = acknowledged(out)
        with max((root / "segments").glob("*.seg")).open("ab") as file:
            file.write(b"torn" * 9)
        process = child(root, 12, point, 1)
    else:
        acks = {}
        process = child(root, 14, point, occurrence)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 137), err
    acks |= acknowledged(out)
    check(root, acks)


def test_kill_9_of_a_producer_at_random(tmp_path):
    """Kill a real producer again and again; acknowledged batches stay, no half batch shows."""
    root = tmp_path / "j"
    seed = int(os.environ.get("HOLDFAST_SEED", "20261115"))
    chance = random.Random(seed)
    acks = {}
    for _ in range(8 if not SOAK else 160):
        process = child(root, 10_000)
        lines = [process.stdout.readline() for _ in range(chance.randint(1, 60))]
        time.sleep(chance.random() * 0.01)
        process.send_signal(signal.SIGKILL)
        rest, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, err
        fresh = acknowledged("".join(lines) + rest.rsplit("\n", 1)[0])
        with JournalReader(root) as reader:
            base = reader.view().base_sequence
        acks = {n: s for n, s in {**fresh, **acks}.items() if s >= base}
        with JournalWriter(root, JournalSettings()) as writer:
            for number, sequence in acks.items():
                receipt = writer.append(batch(number))
                assert (receipt.duplicate, receipt.first_sequence) == (True, sequence), (
                    seed,
                    number,
                )
            for events in group(writer.view().query(Query()).events()).values():
                assert len(events) == SIZE, seed
        report = verify_journal(root, deep=True)
        assert report.ok, (seed, report.findings)


def group(events):
    found = {}
    for event in events:
        found.setdefault((event.id.int - 1) // SIZE, []).append(event)
    return found


def scenario(root, files, acks):
    """The same work as the child's, in this process, on a given operating system."""
    settings = JournalSettings(
        durability=Durability.BATCH, segment_bytes=900, checkpoint_bytes=1500
    )
    writer = JournalWriter(
        root,
        settings,
        clock=ManualClock(),
        ids=SeededEventIds(1),
        files=files,
        journal_id=bytes(16),
    )
    try:
        for number in range(7):
            acks[number] = writer.append(batch(number)).first_sequence
        writer.holds.set("r", writer.view().position(9))
        writer.truncate_before(21)
        writer.compact(target_bytes=5000)
        acks[7] = writer.append(batch(7)).first_sequence
    finally:
        writer.close()


@pytest.mark.parametrize("mode", FaultyFiles.MODES)
def test_the_kth_failing_call_loses_nothing_acknowledged(tmp_path, mode):
    """Every mutating call in turn fails before or after it took effect, runs out of space or writes short."""
    counting = FaultyFiles()
    scenario(tmp_path / "count", counting, {})
    total = len(counting.calls)
    step = 1 if SOAK else 3
    for k in range(FaultyFiles.MODES.index(mode) % step, total + 8, step):
        root, acks = tmp_path / f"{mode}-{k}", {}
        files = FaultyFiles(k, mode)
        try:
            scenario(root, files, acks)
        except HoldfastError:
            assert files.fired
        check(root, acks, (mode, k, files.calls[k] if k < len(files.calls) else None))


def test_a_power_cut_at_any_call_loses_nothing_acknowledged(tmp_path):
    """Unsynced bytes and unsynced names are lost by chance; what was acknowledged is there."""
    cuts = 0
    seed = int(os.environ.get("HOLDFAST_SEED", "77"))

    def run(root, files):
        acks = {}
        states = []

        def snapshot(call):
            if SOAK or call % 4 == seed % 4:
                target = tmp_path / f"cut-{call}"
                files.power_cut(target, seed + call)
                states.append((call, target, dict(acks)))

        files.on_call = snapshot
        scenario(root, files, acks)
        return states

    root = tmp_path / "live"
    root.mkdir()
    files = PowerCutFiles(root)
    states = run(root, files)
    for call, target, acks in states:
        check(target, acks, (seed, call))
        cuts += 1
    assert cuts > 20


def test_a_rename_without_directory_fsync_would_be_found(tmp_path):
    """The simulator is strict: without directory syncs acknowledged batches do get lost."""
    lost = 0
    for seed in range(12):
        root = tmp_path / f"live{seed}"
        root.mkdir()
        files = PowerCutFiles(root)
        files.sync_directory = lambda path: None
        acks = {}
        scenario(root, files, acks)
        target = tmp_path / f"cut{seed}"
        files.power_cut(target, seed)
        try:
            check(target, acks, seed)
        except (AssertionError, HoldfastError):
            lost += 1
    assert lost


def test_a_missing_fsync_would_be_found(tmp_path):
    """The simulator is strict: without fdatasync acknowledged batches do get lost."""
    lost = 0
    for seed in range(12):
        root = tmp_path / f"live{seed}"
        root.mkdir()
        files = PowerCutFiles(root)
        files.sync_data = lambda fd, path: None
        acks = {}
        states = []
        files.on_call = lambda call, f=files, a=acks, s=states, t=tmp_path, n=seed: (
            (f.power_cut(t / f"cut{n}-{call}", n), s.append((t / f"cut{n}-{call}", dict(a))))
            if call % 9 == n % 9
            else None
        )
        scenario(root, files, acks)
        for target, at_cut in states:
            try:
                check(target, at_cut, seed)
            except (AssertionError, HoldfastError):
                lost += 1
    assert lost


def test_ids_in_the_child_are_what_the_checks_think():
    """Guards the arithmetic of these tests."""
    assert [e.id for e in batch(2)] == [uuid.UUID(int=n) for n in (7, 8, 9)]
