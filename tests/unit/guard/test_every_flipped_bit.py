"""One flipped bit anywhere, in the live checkpoint or in a savepoint, is found before a start."""

from __future__ import annotations

import pytest

from holdfast.guard import GuardReport, save, verify
from holdfast.guard._verify import _verify_savepoints
from holdfast.storage import open_storage
from tests.helpers.effort import SOAK, every
from tests.helpers.guard_golden import NAMES, fresh_store, in_memory

SMALL = "aggregation-hdfs"


def _flips(data, step=1):
    """Every byte with one bit; all eight in the soak, every seventh byte in the fast tests."""
    for at in range(0, len(data), step * every(1, 1, 7)):
        for bit in range(8) if SOAK else [(at * 5 + len(data)) % 8]:
            yield at, data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


def _missed(storage, check, step=1, only=None):
    missed = []
    for entry in list(storage.list("")):
        if only is not None and not only(entry.path):
            continue
        good = storage.get(entry.path)
        for at, bad in _flips(good, step):
            storage.put(entry.path, bad)
            if check():
                missed.append((entry.path, at))
        storage.put(entry.path, good)
    return missed


def test_every_byte_of_the_live_checkpoint_against_its_savepoint():
    """All files, all bytes of a small query."""
    location, live = in_memory(SMALL)
    store = fresh_store()
    save(location, store)
    assert verify(location, store).ok
    assert _missed(live, lambda: verify(location, store, deep=False).ok) == []
    assert verify(location, store).ok


def test_every_byte_of_the_live_checkpoint_without_a_savepoint():
    """On local disk Hadoop leaves checksums that Spark does not look at; the guard does."""
    location, live = in_memory(SMALL)
    assert verify(location).ok
    assert _missed(live, lambda: verify(location).ok) == []


def test_every_byte_of_a_savepoint():
    """Catalog, manifest, index, blobs, pins: all that a store keeps of a small query."""
    location, _ = in_memory(SMALL)
    store = fresh_store()
    save(location, store, "kept")
    storage = open_storage(store)

    def sound():
        """The half of `verify` that looks at savepoints."""
        report = GuardReport(location)
        _verify_savepoints(report, location, store, None, True, None)
        return report.ok

    assert sound()
    assert _missed(storage, sound) == []
    assert verify(location, store).ok


@pytest.mark.parametrize("name", NAMES)
def test_every_file_of_every_layout(name):
    """One byte in every few hundred of every file, whatever keeps the state."""
    location, live = in_memory(name)
    store = fresh_store()
    save(location, store)
    step = 1 if SOAK else 211
    assert _missed(live, lambda: verify(location, store, deep=False).ok, step) == []


def test_without_checksums_beside_them_saved_files_are_still_covered():
    """On an object store there are no Hadoop checksums: the savepoint's digests cover its files."""
    location, live = in_memory(SMALL)
    for entry in list(live.list("")):
        if entry.path.rsplit("/", 1)[-1].startswith("."):
            live.delete(entry.path)
    store = fresh_store()
    saved = save(location, store)
    report = verify(location, store)
    assert report.ok
    uncovered = {finding.path for finding in report.findings if finding.kind == "not_covered"}
    assert uncovered
    assert report.covered == saved.files
    missed = _missed(
        live, lambda: verify(location, store, deep=False).ok, 1 if SOAK else 5, only=lambda path: path not in uncovered
    )  # fmt: skip
    assert missed == []
