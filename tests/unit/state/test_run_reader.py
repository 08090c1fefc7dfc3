"""Run files: what is found when they are damaged, missing or of another kind."""

from __future__ import annotations

import hashlib
import pickle  # what Spark does to values between tasks

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import CorruptionError, HoldfastError, IncompatibleError, NotFoundError
from holdfast.ids import SeededIds
from holdfast.state import (
    HASH,
    LatestPartition,
    RunSource,
    RunTarget,
    RunWriterOptions,
    TraceReader,
    TraceSchema,
    Verify,
)
from holdfast.state.run_writer import write_run
from holdfast.storage.local.storage import LocalStorage
from holdfast.storage.memory import MemoryStorage
from tests.helpers.effort import every
from tests.helpers.state_world import World


@pytest.fixture(params=[None, "zstd"])
def stored(request, tmp_path):
    """A world with one run on disk, plain or compressed, and the run's file."""
    world = World(
        "latest", ["string"], "list", seed=5, storage=LocalStorage(tmp_path),
        options=RunWriterOptions(rows_max=4, compression=request.param),
    )  # fmt: skip
    world.step(world.make_rows(30), 1)
    return world, world.storage.local_path(world.runs[0].path)


def read(world, verify=Verify.DIGEST):
    source = RunSource(world.storage, verify=verify)
    return TraceReader(runs=tuple(world.runs), source=source, schema=world.schema).table()


def test_digest_is_that_of_hashlib_over_the_file(stored):
    """Size and SHA-256 computed while writing are those of the bytes on disk."""
    world, file = stored
    data = file.read_bytes()
    assert hashlib.sha256(data).hexdigest() == world.runs[0].sha256
    assert len(data) == world.runs[0].size


def flips(data):
    """Each byte with one of its bits flipped, in place; all bits get their turn."""
    for position in range(0, len(data), every(1, 3, 11)):
        data[position] ^= 1 << (position % 8)
        yield position
        data[position] ^= 1 << (position % 8)


def test_every_flip_is_found_by_the_digest(stored):
    """A flipped bit anywhere in a run is a typed error that names the file."""
    world, file = stored
    data = bytearray(file.read_bytes())
    for _ in flips(data):
        file.write_bytes(data)
        with pytest.raises(HoldfastError) as caught:
            read(world)
        assert world.runs[0].path in str(caught.value)
    file.write_bytes(data)
    assert read(world).num_rows


def test_a_flip_never_changes_an_answer_even_without_the_digest(stored):
    """Reading only what is touched, a flipped bit is a typed error or changes nothing."""
    world, file = stored
    data = bytearray(file.read_bytes())
    right = read(world)
    refused = 0
    for position in flips(data):
        file.write_bytes(data)
        try:
            answer = read(world, Verify.TOUCHED)
        except HoldfastError as error:
            refused += world.runs[0].path in str(error)
        else:
            assert answer.equals(right), position
    assert refused > len(data) // every(1, 3, 11) // 2


def test_state_truncated_to_a_few_bytes_does_not_load(stored):
    """A run cut at any length is refused, naming the file and both sizes."""
    world, file = stored
    data = file.read_bytes()
    for length in (0, 2, 8, 100, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(CorruptionError) as caught:
            read(world, Verify.STRUCTURE)
        assert caught.value.kind == "run_size_differs"
        assert f"actual={length}" in str(caught.value)
        assert world.runs[0].path in str(caught.value)


def test_a_missing_run_is_not_found_and_named(stored):
    """A run that was deleted is a NotFoundError with its path."""
    world, file = stored
    file.unlink()
    with pytest.raises(NotFoundError) as caught:
        read(world, Verify.STRUCTURE)
    assert caught.value.kind == "run_missing"
    assert world.runs[0].path in str(caught.value)


def test_another_schema_is_refused_and_the_difference_listed(stored):
    """Opening with other columns says which are missing and which unexpected."""
    world, _ = stored
    other = TraceSchema.latest(
        pa.schema([("k0", pa.string())]), pa.schema([("v", pa.int64()), ("w", pa.int8())])
    )
    with pytest.raises(IncompatibleError) as caught:
        RunSource(world.storage).open(world.runs[0], other)
    assert caught.value.kind == "run_schema_differs"
    assert "w: int8" in str(caught.value)
    assert world.runs[0].path in str(caught.value)


def test_a_record_that_contradicts_the_file_is_corruption(stored):
    """Facts of the record are compared with those inside the file."""
    import dataclasses

    world, _ = stored
    for field, value in (
        ("rows", 1), ("epoch_high", 9), ("generation", 3), ("operator", "other"),
        ("snapshot", False), ("hash_max", world.runs[0].hash_max - 1),
    ):  # fmt: skip
        wrong = dataclasses.replace(world.runs[0], **{field: value})
        with pytest.raises(CorruptionError) as caught:
            RunSource(world.storage).open(wrong, world.schema)
        assert caught.value.kind == "run_facts_differ"
        assert field.split("_")[0] in str(caught.value)


def test_a_run_of_a_newer_format_is_refused_by_name(stored, monkeypatch):
    """A format number above ours is IncompatibleError, not damage."""
    import holdfast.state.run_writer as run_module

    world, _ = stored
    monkeypatch.setattr(run_module, "RUN_FORMAT", 2)
    world.step(world.make_rows(5), 1)
    with pytest.raises(IncompatibleError) as caught:
        RunSource(world.storage).open(world.runs[-1], world.schema)
    assert caught.value.kind == "newer_format"


def test_a_file_that_is_no_run_is_refused(stored):
    """A valid Arrow file without our header is refused."""
    import dataclasses

    world, file = stored
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, world.schema.stored):
        pass
    info = dataclasses.replace(world.runs[0], size=file.stat().st_size)
    with pytest.raises(CorruptionError, match="no header"):
        RunSource(world.storage).open(info, world.schema)


def test_errors_and_facts_cross_processes(stored):
    """RunInfo, schema and errors survive pickling, as Spark tasks need."""
    world, file = stored
    assert pickle.loads(pickle.dumps(world.runs[0])) == world.runs[0]
    assert pickle.loads(pickle.dumps(world.schema)) == world.schema
    file.write_bytes(b"x")
    with pytest.raises(CorruptionError) as caught:
        read(world)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.kind) == (str(caught.value), caught.value.kind)


def test_a_retried_task_never_reuses_a_name(stored):
    """Two attempts of one task write two files, and each record matches its own."""
    world, _ = stored
    rows = world.make_rows(9)
    before = {entry.path for entry in world.storage.list("")}
    world.step(rows, 1, retry=True)
    fresh = {entry.path for entry in world.storage.list("")} - before
    assert len(fresh) == 2
    assert world.runs[-1].path in fresh
    assert read(world).num_rows


def test_a_writer_that_dies_leaves_nothing():
    """A failing batch aborts the run: no object stays."""
    storage = MemoryStorage()
    schema = TraceSchema.latest(pa.schema([("k", pa.int64())]), pa.schema([]))
    unsorted = pa.RecordBatch.from_arrays(
        [pa.array([5, 1], pa.uint64()), pa.array([False, False]), pa.array([1, 2])],
        schema=schema.stored,
    )
    ids = SeededIds(1)
    target = RunTarget(
        checkpoint=ids.checkpoint_id(1), operator="o", partition=0, partitions=1,
        attempt=ids.token(), epoch=1,
    )  # fmt: skip
    from holdfast.errors import InternalError
    from holdfast.state import ALL_VNODES

    with pytest.raises(InternalError, match="out of order"):
        write_run(storage, schema, target, unsorted, ALL_VNODES)
    assert not list(storage.list(""))


def test_a_pipeline_directory_is_part_of_the_object_path_only(tmp_path):
    """Runs lie below their pipeline, records stay relative to it, and forks find shared ones."""
    import dataclasses

    storage, ids = LocalStorage(tmp_path), SeededIds(2)
    schema = TraceSchema.latest(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
    target = RunTarget(
        checkpoint=ids.checkpoint_id(1), operator="o", partition=0, partitions=1,
        attempt=ids.token(), epoch=1, pipeline="orders",
    )  # fmt: skip
    rows = pa.table({HASH: np.array([3], np.uint64), "k": [1], "v": [7]})
    source = RunSource(storage, pipeline="orders")
    info = LatestPartition.open([], source, schema).apply(rows, storage, target)
    assert info.path.startswith("checkpoints/")
    assert (tmp_path / "orders" / info.path).exists()
    for opened in (source, RunSource(storage, pipeline="fork")):
        shared = info if opened is source else dataclasses.replace(info, pipeline="orders")
        answer = LatestPartition.open([shared], opened, schema).lookup(rows)
        assert answer.values.to_pylist() == [{"v": 7}]
