"""Publishing a Parquet epoch, on disk and on an object store over real HTTP, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import StagedFile, token_text
from holdfast.connectors.parquet.sink import Parquet
from holdfast.errors import NotFoundError, RefusedError
from holdfast.ids import Epoch, SeededIds
from holdfast.storage import open_storage


@pytest.fixture(params=["disk", "s3"])
def place(request, tmp_path):
    """(address, options) of an output."""
    if request.param == "disk":
        return str(tmp_path / "out"), None
    return request.getfixturevalue("s3_url"), request.getfixturevalue("s3_options")


def stage(writer, storage, epoch: int, values: list[int]) -> PendingToken:
    """Stage one file as a task would, and one of a try that lost."""
    checkpoint = SeededIds(epoch).checkpoint_id(0)
    _, directory = writer.staging(checkpoint)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": values}), sink)
    data = sink.getvalue().to_pybytes()
    for name in ("part-00000-a.parquet", "part-00000-lost.parquet"):
        storage.put(f"{directory}/{name}", data)
    file = StagedFile("out", f"{directory}/part-00000-a.parquet", len(data), "", len(values))
    return PendingToken(
        checkpoint, Epoch(epoch), "out", token_text(directory, [file]), "retracts", "pending"
    )


def rows(storage) -> list[int]:
    """What a reader that skips names beginning with an underscore sees."""
    found = []
    for entry in storage.list(""):
        if not entry.path.startswith("_"):
            found += pq.read_table(pa.BufferReader(storage.get(entry.path)))["x"].to_pylist()
    return sorted(found)


def test_an_epoch_is_published_once_and_taken_back(place) -> None:
    """Staged rows are invisible, published rows appear once however often, a rollback removes them."""
    url, options = place
    storage = open_storage(url, options=options)
    writer = Parquet(url, storage_options=options).open("out", "p", None, None)
    first, second = (stage(writer, storage, e, [e * 10, e * 10 + 1]) for e in (0, 1))
    assert rows(storage) == []
    for token in (first, first, second, first, second):
        writer.commit(token)
    assert rows(storage) == [0, 1, 10, 11]
    with pytest.raises(RefusedError):
        writer.retract(None)
    writer.retract(0)
    assert rows(storage) == [0, 1]


def test_staged_rows_that_vanished_are_an_error_and_strangers_are_tidied(place) -> None:
    """A token without its rows is never taken for an empty epoch; other staged rows are removed."""
    url, options = place
    storage = open_storage(url, options=options)
    writer = Parquet(url, storage_options=options).open("out", "p", None, None)
    kept, gone = stage(writer, storage, 0, [1]), stage(writer, storage, 1, [2])
    writer.remove_stale_staging([kept.checkpoint])
    with pytest.raises(NotFoundError) as caught:
        writer.commit(gone)
    assert caught.value.kind == "staging_lost"
    writer.commit(kept)
    assert rows(storage) == [1]
