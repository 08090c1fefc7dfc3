"""A small pipeline whose whole content follows from the list of values that were committed.

`fill` writes a checkpoint for one value on top of a lineage; `told` reads a checkpoint back, every
byte of it, and returns the lineage. A store that mixes old and new cannot return a lineage at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import msgspec

from holdfast import Settings
from holdfast.checkpoint import (
    CounterPosition,
    FilesPosition,
    Part,
    open_store,
    read_store,
    rebuild_catalog,
    topology,
    verify_store,
)
from holdfast.clock import ManualClock
from holdfast.errors import CorruptionError, HoldfastError, InvalidInputError, NotFoundError
from holdfast.format import documents as records
from holdfast.format.canonical import sha256_hex
from holdfast.format.manifest import manifest_bytes, parse_manifest
from holdfast.ids import RandomIds
from holdfast.storage import MemoryStorage

PIPELINE = "p"
TOPOLOGY = topology(
    Part(name="orders", kind="source", what="counter"),
    Part(name="files", kind="source", what="files"),
    Part(name="totals", kind="operator", what="sum", inputs=["orders"], stateful=True),
    Part(name="note", kind="operator", what="note", inputs=["orders"], stateful=True),
    Part(name="wide", kind="operator", what="wide", inputs=["files"], stateful=True),
    Part(name="out", kind="sink", what="memory", inputs=["totals"]),
)
SETTINGS = Settings(inline_bytes_max=16, exclusive=False, retain=2)


def run_bytes(value):
    return f"run of {value};".encode() * 3


def wide_bytes(lineage):
    return ("wide " + ",".join(map(str, lineage))).encode().ljust(32, b".")


def fill(draft, value, lineage, *, sink=True, replay="deduplicates"):
    """Make the draft hold `value` on top of `lineage` (older values)."""
    whole = [*lineage, value]
    draft.set_source("orders", CounterPosition(partitions={"0": len(whole)}))
    log = draft.put_offsets("files", json.dumps(whole).encode())
    draft.set_source("files", FilesPosition(files=len(whole), log=log))
    run = draft.write_run("totals", 0, run_bytes(value), snapshot=not lineage, rows=1)
    if lineage:
        draft.add_file(run)
    else:
        draft.set_operator("totals", trace="latest", files=[run], rows=1, keys=1)
    draft.put_small("note", str(value).encode())
    draft.put_small("wide", wide_bytes(whole))
    draft.set_watermark(len(whole))
    if sink:
        draft.stage_sink("out", f"token {value}", replay=replay)
    return whole


def told(reader, summary):
    """The lineage that a checkpoint holds, after comparing every part of it."""
    manifest = reader.manifest(summary)
    storage = reader.directory.storage
    log = manifest.source("files").position.log
    whole = json.loads(storage.get(reader.directory.at(log)))
    assert manifest.source("orders").position.partitions == {"0": len(whole)}
    assert manifest.source("files").position.files == len(whole)
    runs = [storage.get(reader.directory.file(file)) for file in manifest.files_of("totals")]
    assert runs == [run_bytes(value) for value in whole]
    assert reader.small_state(manifest, "note") == str(whole[-1]).encode()
    assert reader.small_state(manifest, "wide") == wide_bytes(whole)
    assert manifest.watermark_us == len(whole)
    assert [sink.token for sink in manifest.sinks] in ([], [f"token {whole[-1]}"])
    assert manifest.epoch == summary.epoch
    return tuple(whole)


def snapshot(storage, pipeline=PIPELINE):
    """What a user can see of a store: comparable between two runs, with no ids in it."""
    try:
        reader = read_store(storage, pipeline)
    except (NotFoundError, InvalidInputError) as error:
        if error.kind in ("no_pipeline", "not_a_store"):
            return {"live": (), "pins": ()}
        raise
    except CorruptionError as error:
        return {"refused": error.kind}
    try:
        state = reader.catalog()
    except CorruptionError as error:
        return {"refused": error.kind}
    outcomes = reader.outcomes()
    epochs = {entry.checkpoint: entry.epoch for entry in state.live}
    return {
        "live": tuple(
            (
                entry.epoch,
                told(reader, entry),
                entry.abandoned,
                tuple(outcomes.status(entry.checkpoint, sink.name) for sink in entry.sinks),
            )
            for entry in state.live
        ),
        "pins": tuple(sorted((pin.label, epochs.get(pin.checkpoint)) for pin in reader.pins())),
    }


REBUILD_KINDS = ("catalog_lost", "header_lost", "catalog_gap")


@dataclass
class World:
    """One store, and the process that works on it."""

    storage: object
    settings: Settings = SETTINGS
    clock: ManualClock = field(default_factory=ManualClock)
    ids: RandomIds = field(default_factory=RandomIds)
    store: object = None
    value: int = 0

    def open(self, **options):
        self.store = open_store(
            self.storage,
            PIPELINE,
            topology=TOPOLOGY,
            settings=self.settings,
            clock=self.clock,
            ids=self.ids,
            **options,
        )
        return self.store

    def recover(self, **options):
        """Open as an operator would: rebuild a lost catalog first."""
        try:
            return self.open(**options)
        except CorruptionError as error:
            if error.kind not in REBUILD_KINDS:
                raise
            rebuild_catalog(self.storage, PIPELINE, clock=self.clock)
            return self.open(**options)

    def lineage(self):
        current = self.store.current
        if current is None:
            return []
        found = next(e for e in self.store.list() if e.checkpoint == current.checkpoint)
        return [*told(self.store.reader, found)]

    def commit(self, **options):
        lineage = self.lineage()
        with self.store.draft() as draft:
            fill(draft, draft.epoch, lineage, **options)
            return self.store.commit(draft)

    def outcome(self, status="committed", ref="latest"):
        self.store.record_outcome(ref, "out", status)

    def sweep(self, report):
        if report.error is not None:
            raise report.error
        return report


def assert_verified(storage, pipeline=PIPELINE):
    report = verify_store(read_store(storage, pipeline), deep=True)
    assert report.ok, [str(finding) for finding in report.all_findings()]


def in_memory(world):
    """What the Store object believes; must not change when an operation fails."""
    store = world.store
    if not hasattr(store, "list"):
        return None
    return (
        tuple((e.checkpoint, e.epoch, e.abandoned) for e in store.list()),
        store.current.checkpoint if store.current else None,
        store.epoch_next,
    )


def copied(storage):
    """A memory storage of its own with the same objects."""
    twin = MemoryStorage()
    for entry in storage.list(""):
        twin.put(entry.path, storage.get(entry.path))
    return twin


__all__ = [
    "PIPELINE",
    "REBUILD_KINDS",
    "SETTINGS",
    "TOPOLOGY",
    "HoldfastError",
    "World",
    "assert_verified",
    "copied",
    "fill",
    "in_memory",
    "snapshot",
    "told",
]


def as_version_1(storage, pipeline=PIPELINE):
    """Make a store what version 1 would have written: every document, and with it the chain."""
    names = sorted(e.path for e in storage.list(pipeline))
    manifests = {}
    for path in (name for name in names if name.endswith("/manifest.json")):
        checkpoint = path.split("/")[-2]
        old = parse_manifest(storage.get(path), path, checkpoint)
        operators = [msgspec.structs.replace(e, counts="unknown") for e in old.operators]
        new = msgspec.structs.replace(old, format=1, counts="unknown", operators=operators)
        manifests[checkpoint] = manifest_bytes(new)
        storage.put(path, manifests[checkpoint])

    def older(summary):
        data = manifests[summary.checkpoint]
        return msgspec.structs.replace(
            summary, counts="unknown", manifest_sha256=sha256_hex(data), manifest_bytes=len(data)
        )

    previous, digests = None, {}
    for path in (name for name in names if "/catalog/" in name):
        record = records.parse_record(storage.get(path), path, int(path[-25:-5]))
        body = record.body
        if isinstance(body, records.CommitBody):
            body = msgspec.structs.replace(body, summary=older(body.summary))
        elif isinstance(body, records.BaseBody):
            body = msgspec.structs.replace(body, live=[older(entry) for entry in body.live])
        record = msgspec.structs.replace(
            record, format=1, body=body, previous=previous or record.previous
        )
        data = records.record_bytes(record)
        previous = digests[record.sequence] = sha256_hex(data)
        storage.put(path, data)
    for path in names:
        data, label = storage.get(path), path.split("/")[-1].removesuffix(".json")
        if path.endswith("/holdfast.json"):
            old = records.parse_header(data, path)
            storage.put(path, records.header_bytes(msgspec.structs.replace(old, format=1)))
        elif path.endswith("/_latest"):
            old = records.parse_latest(data, path)
            digest = digests.get(old.sequence, old.record_sha256)
            new = msgspec.structs.replace(old, format=1, record_sha256=digest)
            storage.put(path, records.latest_bytes(new))
        elif "/pins/" in path:
            old = records.parse_pin(data, path, label)
            digest = sha256_hex(manifests[old.checkpoint])
            new = msgspec.structs.replace(old, format=1, manifest_sha256=digest)
            storage.put(path, records.pin_bytes(new))
