"""The upserting Parquet sink against a plain Counter, on disk and on S3 over real HTTP."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import StagedFile, token_text
from holdfast.connectors.parquet.sink import Parquet
from holdfast.connectors.parquet_upsert.writer import apply_changes, bucket_of
from holdfast.errors import CorruptionError, InvalidInputError, RefusedError
from holdfast.ids import Epoch, SeededIds
from holdfast.storage import open_storage
from holdfast.storage.open import StorageLocation

SCHEMA = pa.schema([("k", pa.string()), ("x", pa.float64()), ("_weight", pa.int64())])


@pytest.fixture(params=["disk", "s3"])
def world(request, tmp_path):
    """(sink, staging place, reader of the output)."""
    store = StorageLocation(str(tmp_path / "store"))
    if request.param == "disk":
        sink = Parquet(str(tmp_path / "out"), mode="upsert")

        def read() -> Counter:
            return _counted(pq.read_table(tmp_path / "out"))

        return sink, store, read
    url, options = request.getfixturevalue("s3_url"), request.getfixturevalue("s3_options")
    sink = Parquet(url, mode="upsert", storage_options=options)

    def read_remote() -> Counter:
        storage = open_storage(url, options=options)
        found: Counter = Counter()
        for entry in storage.list(""):
            found += _counted(pq.read_table(pa.BufferReader(storage.get(entry.path))))
        return found

    return sink, store, read_remote


def _counted(table) -> Counter:
    return Counter((row["k"], str(row["x"])) for row in table.to_pylist())


def token_of(writer, store: StorageLocation, epoch: int, rows: list[tuple]) -> PendingToken:
    """Stage changes as a task would."""
    checkpoint = SeededIds(epoch).checkpoint_id(0)
    storage = open_storage(store.url)
    _, directory = writer.staging(checkpoint)
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = sink.getvalue().to_pybytes()
    path = f"{directory}/part-00000-a.parquet"
    storage.put(path, data)
    text = token_text(directory, [StagedFile("out", path, len(data), "", len(rows))])
    return PendingToken(checkpoint, Epoch(epoch), "out", text, "retracts", "pending")


VALUES = [None, 1.5, 0.0, float("nan"), 7.0]


def random_changes(rng: random.Random, live: Counter) -> list[tuple]:
    """Changes by number of the value, so that NaN can be counted; live is brought up to date."""
    found = []
    for _ in range(rng.randint(1, 40)):
        there = sorted(live.elements(), key=str)
        if there and rng.random() < 0.4:
            row, weight = rng.choice(there), -1
        else:
            row = (rng.choice(["a", "b", "", None]), rng.randrange(len(VALUES)))
            weight = rng.choice([1, 2])
        live[row] += weight
        found.append((row[0], VALUES[row[1]], weight))
    for row in [row for row, n in live.items() if n == 0]:
        del live[row]
    return found


def test_the_output_is_the_rows_as_they_are_now(world) -> None:
    """After every epoch, applied once or again, the output equals the model."""
    sink, store, read = world
    writer = sink.open("out", "p", store, None)
    rng, live = random.Random(5), Counter()
    for epoch in range(1, 7):
        token = token_of(writer, store, epoch, random_changes(rng, live))
        writer.commit(token)
        if epoch % 2:
            sink.open("out", "p", store, None).commit(token)
        assert read() == Counter({(k, str(VALUES[x])): n for (k, x), n in live.items()})


def test_going_back_shows_the_version_of_that_epoch(tmp_path) -> None:
    """A fall-back to an older checkpoint takes newer versions back; too far back is refused."""
    sink, store = (
        Parquet(str(tmp_path / "out"), mode="upsert"),
        StorageLocation(str(tmp_path / "store")),
    )
    writer = sink.open("out", "p", store, None)
    for epoch in (2, 4, 6):
        writer.commit(token_of(writer, store, epoch, [("a", float(epoch), 1)]))
    writer.retract(6)
    assert len(pq.read_table(tmp_path / "out")) == 3
    writer.retract(5)
    assert sorted(pq.read_table(tmp_path / "out")["x"].to_pylist()) == [2.0, 4.0]
    writer.commit(token_of(writer, store, 6, [("b", 9.0, 1)]))
    assert sorted(pq.read_table(tmp_path / "out")["x"].to_pylist()) == [2.0, 4.0, 9.0]
    for bad in (1, None):
        with pytest.raises(RefusedError):
            writer.retract(bad)


def test_a_version_that_was_not_finished_is_made_again(tmp_path) -> None:
    """A crash between the version and the link leaves the old one showing and is repaired."""
    sink, store = (
        Parquet(str(tmp_path / "out"), mode="upsert"),
        StorageLocation(str(tmp_path / "store")),
    )
    writer = sink.open("out", "p", store, None)
    writer.commit(token_of(writer, store, 1, [("a", 1.0, 1)]))
    token = token_of(writer, store, 2, [("a", 1.0, -1), ("a", 2.0, 1)])
    writer._swap, swap = (lambda epoch: (_ for _ in ()).throw(OSError("power"))), writer._swap
    with pytest.raises(OSError, match="power"):
        writer.commit(token)
    assert pq.read_table(tmp_path / "out")["x"].to_pylist() == [1.0]
    writer._swap = swap
    writer.commit(token)
    assert pq.read_table(tmp_path / "out")["x"].to_pylist() == [2.0]


def test_an_output_that_somebody_else_changed_is_an_error(world) -> None:
    """Taking back a row that is not there is never guessed at."""
    sink, store, _ = world
    writer = sink.open("out", "p", store, None)
    writer.commit(token_of(writer, store, 1, [("a", 1.0, 1)]))
    with pytest.raises(CorruptionError) as caught:
        writer.commit(token_of(writer, store, 2, [("a", 3.0, -1)]))
    assert caught.value.kind == "output_differs"


def test_a_place_with_other_files_and_unknown_modes_are_refused(tmp_path) -> None:
    """An existing directory is not taken over."""
    (tmp_path / "out").mkdir()
    with pytest.raises(RefusedError):
        Parquet(str(tmp_path / "out"), mode="upsert").open(
            "o", "p", StorageLocation(str(tmp_path)), None
        )
    with pytest.raises(InvalidInputError):
        Parquet(str(tmp_path / "out"), mode="merge")


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 3)), max_size=30))
def test_buckets_are_stable_and_changes_add_up(rows) -> None:
    """Equal rows share a bucket in any order, and adding then removing rows leaves nothing."""
    schema = pa.schema([("k", pa.string()), ("x", pa.int64())])
    table = pa.Table.from_pylist([{"k": k, "x": x} for k, x in rows], schema)
    buckets = bucket_of(table)
    assert [*bucket_of(table.take(pa.array(np.arange(len(rows))[::-1])))] == [*buckets[::-1]]
    added = apply_changes(table.slice(0, 0), table, np.ones(len(rows), np.int64), "s")
    assert Counter(map(str, added.to_pylist())) == Counter(map(str, table.to_pylist()))
    assert apply_changes(added, table, -np.ones(len(rows), np.int64), "s").num_rows == 0
