"""One valid document of every kind, for the tests of the format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.format import documents as r
from holdfast.format import manifest as m
from holdfast.format.canonical import NO_DIGEST, sha256_hex
from holdfast.format.topology import fingerprint
from tests.helpers.rig import at, shop

ID = "018bcfe5-6800-7000-8000-000000000001"
PARENT = "018bcfe5-6800-7000-8000-000000000000"
WRITER = "5d4e5f60-0000-4000-8000-000000000000"
DIGEST = "ab" * 32
RUN = f"checkpoints/{ID}/operators/totals/partition-00000-00000000000000aa.delta"
OLD = f"checkpoints/{PARENT}/operators/totals/partition-00000-00000000000000aa.snap"
PACK = f"checkpoints/{ID}/state.pack"
BASE = {"format": 2, "sha256": NO_DIGEST}


def header(**changes: Any) -> r.StoreHeader:
    fields = {
        "lineage": WRITER,
        "pipeline": "shop",
        "created_us": 1,
        "vnodes": 256,
        "holdfast": "1",
    }
    return r.StoreHeader(**{**BASE, **fields, **changes})


def summary(**changes: Any) -> r.Summary:
    fields = {
        "checkpoint": ID, "epoch": 3, "sequence": 5, "manifest_sha256": DIGEST,
        "manifest_bytes": 900, "created_us": 7, "fingerprint": DIGEST,
        "sinks": [r.SinkPromise(name="out", replay="none")],
    }  # fmt: skip
    return r.Summary(**{**fields, **changes})


def record(body: Any = None, **changes: Any) -> r.Record:
    fields = {
        "sequence": 5, "base": 0, "previous": DIGEST, "writer": WRITER, "at_us": 9,
        "body": body or r.CommitBody(summary=summary()),
    }  # fmt: skip
    return r.Record(**{**BASE, **fields, **changes})


def latest(**changes: Any) -> r.Latest:
    fields = {"sequence": 5, "record_sha256": DIGEST, "checkpoint": ID, "epoch": 3}
    return r.Latest(**{**BASE, **fields, **changes})


def pin(**changes: Any) -> r.Pin:
    fields = {
        "label": "gold",
        "checkpoint": ID,
        "epoch": 3,
        "created_us": 4,
        "manifest_sha256": DIGEST,
    }
    return r.Pin(**{**BASE, **fields, **changes})


def outcome(**changes: Any) -> r.Outcome:
    fields = {
        "checkpoint": ID, "epoch": 3, "sink": "out", "attempt": 0, "status": "committed",
        "replay": "none", "at_us": 8, "writer": WRITER,
    }  # fmt: skip
    return r.Outcome(**{**BASE, **fields, **changes})


def manifest(**changes: Any) -> m.Manifest:
    topology = changes.get("topology", shop())
    fields = {
        "checkpoint": ID,
        "pipeline": "shop",
        "lineage": WRITER,
        "epoch": 3,
        "sequence": 5,
        "writer": WRITER,
        "created_us": 7,
        "topology": topology,
        "fingerprint": fingerprint(topology),
        "versions": m.Versions(holdfast="0.1.0", python="3.11.0"),
        "parent": PARENT,
        "incremental": True,
        "watermark_us": 50,
        "sources": [m.SourceEntry(name="orders", position=at(9), epoch=3, watermark_us=60)],
        "operators": [
            m.OperatorEntry(name="counter", trace="small", small=inline(b"7"), bytes=1),
            m.OperatorEntry(name="totals", trace="latest", rows=4, keys=2, bytes=30, counts="live"),
        ],
        "sinks": [m.SinkEntry(name="out", epoch=3, token="t", replay="none")],
        "listed": [run(OLD, kind="snapshot", base=None, size=10), run(RUN, size=20)],
        "rows": 4,
        "keys": 2,
        "counts": "live",
        "bytes_new": 20,
        "bytes_total": 30,
    }
    return m.Manifest(**{**BASE, **fields, **changes})


def inline(data: bytes) -> m.InlineState:
    return m.InlineState(data=data, sha256=sha256_hex(data))


def run(path: str = RUN, **changes: Any) -> m.FileEntry:
    fields = {
        "path": path, "size": 20, "sha256": DIGEST, "kind": "delta", "operator": "totals",
        "partition": 0, "base": PARENT, "rows": 2,
    }  # fmt: skip
    return m.FileEntry(**{**fields, **changes})


def segment(**changes: Any) -> m.Segment:
    fields = {"files": [run(OLD, kind="snapshot", base=None, epoch_low=0, epoch_high=0)]}
    return m.Segment(**{**BASE, **fields, **changes})


@dataclass(frozen=True)
class Codec:
    """How one kind of document is written and read."""

    name: str
    make: Callable[[], Any]
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


CODECS = [
    Codec("header", header, r.header_bytes, lambda d: r.parse_header(d, "f")),
    Codec("record", record, r.record_bytes, lambda d: r.parse_record(d, "f", 5)),
    Codec("latest", latest, r.latest_bytes, lambda d: r.parse_latest(d, "f")),
    Codec("pin", pin, r.pin_bytes, lambda d: r.parse_pin(d, "f", "gold")),
    Codec("outcome", outcome, r.outcome_bytes, lambda d: r.parse_outcome(d, "f", 3, "out", 0)),
    Codec("segment", segment, m.segment_bytes, lambda d: m.parse_segment(d, "f")),
    Codec("manifest", manifest, m.manifest_bytes, lambda d: m.parse_manifest(d, "f", ID)),
]
