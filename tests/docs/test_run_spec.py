"""The example of spec/run-v1.md, byte by byte."""

from __future__ import annotations

import re
import zlib

import numpy as np
import pyarrow as pa

from holdfast.ids import CheckpointId, Epoch
from holdfast.state import DELETED, HASH, LatestPartition, RunSource, RunTarget, TraceSchema
from holdfast.storage.memory import MemoryStorage
from tests.helpers.paths import ROOT

SPEC = ROOT / "spec" / "run-v1.md"

SCHEMA = TraceSchema.latest(
    pa.schema([("customer", pa.string())]), pa.schema([("total", pa.int64())])
)


def write_example():
    """The run of the specification: three updates of epoch 7 on a checkpoint of epoch 6."""
    storage = MemoryStorage()
    rows = pa.table(
        {
            HASH: np.array([0xC000000000000001, 0x1000000000000002, 0x1000000000000002], np.uint64),
            DELETED: [False, False, True],
            "customer": ["ada", "bob", "cyd"],
            "total": pa.array([5, 7, None], pa.int64()),
        }
    )
    target = RunTarget(
        checkpoint=CheckpointId("0198c0de-0000-7000-8000-000000000007"), operator="totals",
        partition=0, partitions=1, attempt="00000000000000aa", epoch=Epoch(6),
    )  # fmt: skip
    older = LatestPartition.open([], RunSource(storage), SCHEMA)
    base = older.apply(rows.slice(0, 1), storage, target)
    target = RunTarget(
        checkpoint=CheckpointId("0198c0de-0000-7000-8000-000000000008"), operator="totals",
        partition=0, partitions=1, attempt="00000000000000ab", epoch=Epoch(7),
        base=CheckpointId("0198c0de-0000-7000-8000-000000000007"),
    )  # fmt: skip
    info = LatestPartition.open([base], RunSource(storage), SCHEMA).apply(rows, storage, target)
    return storage, base, info


def spec_block(name):
    match = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)```", SPEC.read_text(), re.DOTALL)
    assert match, name
    return match.group(1)


def hexdump(data):
    return "".join(
        f"{start:06x}  {data[start : start + 16].hex(' ')}\n" for start in range(0, len(data), 16)
    )


def test_the_header_and_summary_of_the_specification_are_what_is_written():
    """The JSON documents that the specification prints are those inside a run."""
    storage, _, info = write_example()
    reader = pa.ipc.open_file(storage.get(info.path))
    header = reader.schema.metadata[b"holdfast.run"].decode()
    notes = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1).custom_metadata
    assert header == spec_block("header").strip()
    assert notes[b"holdfast.summary"].decode() == spec_block("summary").strip()
    crc = zlib.crc32(notes[b"holdfast.summary"])
    assert notes[b"holdfast.summary.crc32"].decode() == f"{crc:08x}" == spec_block("crc").strip()


def test_the_bytes_of_the_specification_read_as_it_says():
    """The printed file is a run: its digest, rows and order are those in the text."""
    raw = bytes.fromhex(
        "".join(line.split("  ", 1)[1] for line in spec_block("bytes").splitlines() if line)
    )
    storage, base, info = write_example()
    import dataclasses
    import hashlib

    assert hashlib.sha256(raw).hexdigest() in SPEC.read_text()
    table = pa.ipc.open_file(raw).read_all()
    assert table.to_pylist() == [
        {HASH: 0x1000000000000002, DELETED: False, "customer": "bob", "total": 7},
        {HASH: 0x1000000000000002, DELETED: True, "customer": "cyd", "total": None},
        {HASH: 0xC000000000000001, DELETED: False, "customer": "ada", "total": 5},
    ]
    # Other versions of Arrow may frame differently: the printed bytes must be read all the same.
    golden = dataclasses.replace(info, size=len(raw), sha256=hashlib.sha256(raw).hexdigest())
    storage.delete(info.path)
    storage.put_new(info.path, raw)
    opened = RunSource(storage).open(golden, SCHEMA)
    assert opened.batch(0).num_rows == 3
    answer = LatestPartition.open([base, golden], RunSource(storage), SCHEMA).lookup(
        pa.table({HASH: np.array([0x1000000000000002] * 2, np.uint64), "customer": ["bob", "cyd"]})
    )
    assert answer.found.tolist() == [True, False]
