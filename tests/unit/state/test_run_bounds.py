"""A small file cannot ask for a lot of memory: framing is checked before anything is unpacked."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys

import pyarrow as pa
import pytest

from holdfast.errors import CorruptionError, IncompatibleError, InvalidInputError
from holdfast.ids import RandomIds
from holdfast.journal.format.columns import decode_columns
from holdfast.journal.format.frame import BadFrameError
from holdfast.state import HASH, RunSource, RunTarget, TraceSchema
from holdfast.state import run_writer as run
from holdfast.state.arrow.message_bounds import UNPACKED_BYTES_MAX
from holdfast.state.run_info import VnodeRange
from holdfast.state.run_reader import Verify
from holdfast.state.run_writer import RunWriterOptions, write_run
from holdfast.storage import open_storage
from tests.helpers.paths import child_environment

SCHEMA = TraceSchema.latest(
    pa.schema([("k", pa.string())]), pa.schema([("v", pa.string()), ("n", pa.int64())])
)


def _rows(values):
    count = len(values)
    table = pa.table(
        {
            HASH: pa.array(range(count), pa.int64()),
            "k": [str(i) for i in range(count)],
            "v": pa.array(values, pa.string()),
            "n": pa.array(range(count), pa.int64()),
        }
    )
    return SCHEMA.rows_of(table)


def _write(folder, values, **options):
    storage = open_storage(folder)
    target = RunTarget(
        checkpoint=RandomIds().checkpoint_id(1),
        operator="op",
        partition=0,
        partitions=1,
        attempt="0" * 16,
        epoch=0,
        base=None,
        pipeline=None,
    )
    info = write_run(
        storage,
        SCHEMA,
        target,
        _rows(values),
        VnodeRange(0, 256),
        snapshot=True,
        options=RunWriterOptions(**options),
    )
    return storage, info


def _read(storage, info, verify=Verify.DIGEST):
    opened = RunSource(storage, verify=verify).open(info, SCHEMA)
    return [opened.batch(number) for number in range(opened.batch_count)]


@pytest.mark.parametrize("compression", ["lz4", "zstd", None])
@pytest.mark.parametrize("values", [["a"], ["x" * 100] * 5_000, [None, "y", ""] * 100, [None]])
def test_what_a_writer_writes_is_read(tmp_path, compression, values):
    """The bounds never refuse an honest run."""
    storage, info = _write(tmp_path, values, compression=compression)
    found = [value for batch in _read(storage, info) for value in batch.column(3).to_pylist()]
    assert found == values


@pytest.mark.parametrize("declared", [1 << 62, 1 << 40, UNPACKED_BYTES_MAX + 1, -2, -(1 << 63)])
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_every_length_that_a_buffer_may_declare_is_bounded(tmp_path, declared, compression):
    """Whichever buffer asks for too much, the answer is a typed error, not an allocation."""
    storage, info = _write(tmp_path, ["x" * 500] * 1_000, compression=compression)
    path = tmp_path / info.path
    whole = path.read_bytes()
    spots = [
        at
        for at in range(0, len(whole) - 8, 8)
        if struct.unpack_from("<q", whole, at)[0] in (8_000, 500_000, 4_004)
    ]
    assert len(spots) >= 3
    for at in spots:
        path.write_bytes(whole[:at] + struct.pack("<q", declared) + whole[at + 8 :])
        with pytest.raises(CorruptionError) as caught:
            _read(storage, info, Verify.STRUCTURE)
        assert "unpacks to" in str(caught.value) or "negative" in str(caught.value)


def test_a_column_of_fixed_width_unpacks_to_what_its_rows_need(tmp_path):
    """Below the limit of a batch, rows times width is the bound."""
    storage, info = _write(tmp_path, ["x"] * 1_000, compression="zstd")
    path = tmp_path / info.path
    whole = path.read_bytes()
    at = next(i for i in range(0, len(whole), 8) if whole[i : i + 8] == struct.pack("<q", 8_000))
    path.write_bytes(whole[:at] + struct.pack("<q", 1 << 20) + whole[at + 8 :])
    with pytest.raises(CorruptionError, match="1000 rows"):
        _read(storage, info, Verify.STRUCTURE)


_PEAK = """
import resource
from tests.unit.state.test_run_bounds import _read, _write
import tests.unit.state.test_run_bounds as t
import msgspec
from holdfast.errors import CorruptionError
from holdfast.state.run_info import RunInfo
from holdfast.storage import open_storage
storage, info = open_storage({folder!r}), eval({info!r}, {{**vars(t), **vars(t.run), 'RunInfo': RunInfo}})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    _read(storage, info)
    print("read")
except CorruptionError as error:
    print("refused", error.kind)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_bomb_with_valid_digests_costs_no_memory(tmp_path, monkeypatch):
    """A few kilobytes that unpack to 600 MB are refused at a peak of a few megabytes."""
    monkeypatch.setattr(run, "_FITTING_BYTES", 1 << 40)
    _, info = _write(tmp_path, ["\0" * (600 << 20)], compression="zstd")
    assert info.size < 1 << 20
    code = _PEAK.format(folder=str(tmp_path), info=repr(info))
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=child_environment(),
    )
    said, peak = done.stdout.splitlines()
    assert said == "refused run_undecodable", done.stderr
    assert int(peak) < 100_000, "kilobytes"


def test_a_row_that_no_reader_would_unpack_is_not_written(tmp_path, monkeypatch):
    """The writer keeps to the bound of the reader; uncompressed runs have none."""
    monkeypatch.setattr(run, "_FITTING_BYTES", 1 << 20)
    with pytest.raises(InvalidInputError, match="row is larger"):
        _write(tmp_path / "a", ["x" * (2 << 20)], compression="zstd")
    _write(tmp_path / "b", ["x" * (2 << 20)], compression=None)


def test_uneven_rows_are_cut_into_batches_that_fit(tmp_path):
    """One megabyte among thousands of small rows does not make a batch larger than twice the limit."""
    values = ["x"] * 4_000 + ["y" * 10_000] * 300
    storage, info = _write(tmp_path, values, bytes_max=64 << 10, compression="zstd")
    batches = _read(storage, info)
    assert [v for batch in batches for v in batch.column(3).to_pylist()] == values
    assert max(batch.nbytes for batch in batches) <= 2 * (64 << 10)


@pytest.mark.parametrize("kind", ["plain", "dictionary"])
def test_typed_columns_of_a_journal_are_never_compressed(kind):
    """A frame whose columns would have to be unpacked is refused."""
    values = pa.array(["x" * 1_000] * 100)
    batch = pa.record_batch({"a": values.dictionary_encode() if kind == "dictionary" else values})
    for compression in ("zstd", "lz4", None):
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        if compression is None:
            assert len(decode_columns(sink.getvalue(), 100)) == 100
        else:
            with pytest.raises(BadFrameError, match="compressed"):
                decode_columns(sink.getvalue(), 100)


def test_cut_and_flipped_framing_is_refused_not_followed(tmp_path):
    """Any byte of the framing may be wrong: a typed error or the right rows, at no great cost."""
    storage, info = _write(tmp_path, ["abc"] * 50, compression="zstd")
    path = tmp_path / info.path
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            _read(storage, info, Verify.STRUCTURE)
        except CorruptionError:
            continue
        except IncompatibleError as error:
            assert "schema" in str(error) or "newer" in str(error), (at, error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4_000_000
