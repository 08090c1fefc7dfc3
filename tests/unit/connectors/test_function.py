"""The function sink with batches: bounded, in the same order again, and by ranges from afar."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.checkpoint import PendingToken, artifact
from holdfast.checkpoint.artifact import copy_object
from holdfast.connectors import parquet_files
from holdfast.connectors.base import token_text
from holdfast.connectors.parquet_files import open_parquet, row_batches
from holdfast.connectors.staging import Target, stage_rows
from holdfast.errors import AlreadyExistsError, CorruptionError, InvalidInputError, NotFoundError
from holdfast.ids import Epoch, RandomIds, SeededIds
from holdfast.storage import open_storage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.open import StorageLocation


def test_a_handler_gets_an_epoch_in_bounded_batches_and_the_same_order(tmp_path) -> None:
    """Wide rows come few at a time; a reader that stops half-way gets everything again, in order."""
    store, seen = StorageLocation(str(tmp_path)), []

    def handler(rows, epoch: int, key: str) -> None:
        found = []
        for batch in rows:
            assert isinstance(batch, pa.RecordBatch) and batch.nbytes < 12 << 20
            found += batch.column("x").to_pylist()
            if not seen and len(found) > 100:
                seen.append(("half", found[:100]))
                raise RuntimeError
        seen.append((epoch, key, batch.schema.names, found))

    sink = hf.sinks.Function(handler, rows="batches")
    writer = sink.open("calls", "p", store, None)
    checkpoint = SeededIds(1).checkpoint_id(0)
    _, directory = writer.staging(checkpoint)
    tables = [
        pa.table(
            {
                "x": pa.array(range(first, first + 20_000)),
                "text": pa.array([f"{n}" * 200 for n in range(20_000)]),
                "_weight": pa.array([1] * 20_000, pa.int64()),
            }
        )
        for first in (0, 50_000)
    ]
    files = [
        stage_rows(Target("calls", store), directory, n, t, ids=RandomIds(), durable=False)
        for n, t in enumerate(tables)
    ]
    text = token_text(directory, files)
    token = PendingToken(checkpoint, Epoch(3), "calls", text, "none", "pending")
    with pytest.raises(RuntimeError):
        writer.commit(token)
    writer.commit(token)
    writer.commit(token)
    half, again, third = seen
    assert again == third and again[:2] == (3, f"{checkpoint}:calls")
    assert again[2] == ["x", "text", "_weight"] and again[3][:100] == half[1]
    assert again[3] == [*range(20_000), *range(50_000, 70_000)]


def test_other_kinds_of_rows_are_refused() -> None:
    """A wrong word is named before anything runs."""
    with pytest.raises(InvalidInputError) as caught:
        hf.sinks.Function(print, rows="table")
    assert caught.value.facts["argument"] == "rows"


class Counted(MemoryStorage):
    """An object store that counts the bytes of each request."""

    def __init__(self) -> None:
        super().__init__("counted")
        self.asked: list[int] = []

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.asked.append(length)
        return super().get_range(path, start, length)


def test_large_objects_are_read_and_copied_by_ranges(monkeypatch, tmp_path) -> None:
    """Nothing asks for a large object whole; what is there already is kept or refused."""
    monkeypatch.setattr(parquet_files, "_WHOLE_BYTES", 1_000)
    monkeypatch.setattr(artifact, "_CHUNK_BYTES", 10_000)
    storage, table = Counted(), pa.table({"x": pa.array(range(200_000))})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=10_000, compression="none")
    data = sink.getvalue().to_pybytes()
    storage.put("a/one.parquet", data)
    with open_parquet(storage, "a/one.parquet") as file:
        batches = [*row_batches(file, [3])]
    assert pa.Table.from_batches(batches)["x"].to_pylist() == [*range(30_000, 40_000)]
    assert 0 < sum(storage.asked) < len(data) // 2
    storage.asked.clear()
    target = open_storage(str(tmp_path))
    for _ in range(2):
        copy_object(storage, "a/one.parquet", target, "b/two.parquet")
    assert target.get("b/two.parquet") == data and max(storage.asked) == 10_000
    storage.put("a/one.parquet", data[:-1])
    with pytest.raises(AlreadyExistsError):
        copy_object(storage, "a/one.parquet", target, "b/two.parquet")
    for place in (storage, target):
        with pytest.raises(NotFoundError):
            open_parquet(place, "a/none.parquet")
        place.put("a/bad.parquet", b"no Parquet" * 500)
        with pytest.raises(CorruptionError):
            open_parquet(place, "a/bad.parquet")
