"""Every byte of every file: a flipped bit, a lost byte and an added byte are found. No exceptions."""

from __future__ import annotations

import functools
from unittest import mock

import pytest

from holdfast.checkpoint import verify_store
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reader import StoreReader
from holdfast.storage import MemoryStorage
from tests.helpers.effort import SOAK, every
from tests.helpers.scenes import PIPELINE, SETTINGS, World, assert_verified


class Overlay(MemoryStorage):
    """The same objects, but one of them with other bytes."""

    def __init__(self, below: MemoryStorage, path: str, content: bytes) -> None:
        super().__init__()
        self._objects = {**below._objects, path: content}


@functools.cache
def store():
    """Several incremental checkpoints with everything that can be stored."""
    with (
        mock.patch("holdfast.checkpoint.segments.LISTED_MAX", 2),
        mock.patch("holdfast.checkpoint.segments.SEGMENT_FILES", 3),
        mock.patch("holdfast.checkpoint.segments._free", lambda entry: entry.operator == "totals"),
    ):
        return _store()


def _store():
    world = World(MemoryStorage(), settings=SETTINGS)
    world.open()
    world.commit()
    world.outcome("failed")
    world.outcome()
    world.commit()
    world.outcome()
    world.store.pin("gold", "epoch:0", note="first")
    world.store.compact()  # the base of the catalog; what follows is its tail
    world.commit()
    world.open(resume="epoch:1", accept_duplicates=True)  # epoch 2 is abandoned
    world.commit()
    world.outcome()
    kinds = {path.split("/")[1] for path in world.storage._objects}
    assert kinds == {"_latest", "catalog", "checkpoints", "holdfast.json", "outcomes", "pins"}
    leaves = {path.rpartition("/")[2].split(".")[-1] for path in world.storage._objects}
    assert {"snap", "delta", "pack", "json"} <= leaves
    assert any("/offsets/" in path for path in world.storage._objects)
    assert any("/segments/" in path for path in world.storage._objects)
    live = world.store.reader.catalog().live
    assert [entry.abandoned for entry in live] == [False, False, True, False]
    assert_verified(world.storage)
    return world.storage


def found(path, content):
    """Whether deep verification notices that one object has these bytes."""
    reader = StoreReader(PipelineDirectory(Overlay(store(), path, content), PIPELINE))
    return not verify_store(reader, deep=True).ok


def paths():
    return sorted(store()._objects)


def flipped(content, position, bit):
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)


def test_one_flipped_bit_in_every_byte_is_found():
    """For every byte of every file, flipping one bit is found by deep verification."""
    missed, tried, step = [], 0, every(1, 1, 9)
    for path in paths():
        content = store()._objects[path]
        for position in range(0, len(content), step):
            tried += 1
            if not found(path, flipped(content, position, position % 8)):
                missed.append((path, position, position % 8))
    assert missed == []
    assert tried * step >= sum(len(content) for content in store()._objects.values()) > 5_000


def test_every_bit_of_the_format_field_is_found():
    """The field that says which format a document has is guarded in all its bits, in every file."""
    for path in paths():
        content = store()._objects[path]
        start = content.find(b'"format":')
        for position in range(start, start + 10) if start >= 0 else ():
            for bit in range(8):
                assert found(path, flipped(content, position, bit)), (path, position, bit)


@pytest.mark.parametrize("change", ["truncate", "append", "empty"])
def test_every_file_of_another_length_is_found(change):
    """A file that lost its last byte, gained one or is empty is found."""
    for path in paths():
        content = store()._objects[path]
        changed = {"truncate": content[:-1], "append": content + b"\n", "empty": b""}[change]
        assert found(path, changed), path


def test_every_lost_file_is_found_unless_it_only_hints():
    """Every file but the hint is missed when it is gone."""
    for path in paths():
        storage = Overlay(store(), path, b"")
        del storage._objects[path]
        report = verify_store(StoreReader(PipelineDirectory(storage, PIPELINE)), deep=True)
        may_be_gone = path.endswith("/_latest") or "/outcomes/" in path or "/pins/" in path
        assert report.ok == may_be_gone, path


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="all eight bits of every byte: HOLDFAST_SOAK=1")
@pytest.mark.timeout(3_600)
def test_all_eight_bits_of_every_byte_are_found():
    """Every single bit of every file."""
    for path in paths():
        content = store()._objects[path]
        for position in range(len(content)):
            for bit in range(8):
                assert found(path, flipped(content, position, bit)), (path, position, bit)
