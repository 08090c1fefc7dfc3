"""Build the golden stores of the newest format: the same bytes every time.

    python tools/make_golden.py tests/compat/v2

Those of older formats were made by the software of their time, and are never made again.

The store is made through the public API with seeded ids and a clock that stands still between
steps. It holds several incremental checkpoints, inline and packed small state, offsets in a file,
segments, all kinds of records including a base, a rollback, a savepoint, a fork, positions of every
connector, and outcomes of every kind. The versions of Python and Holdfast are fixed, since they
are written into the documents.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from unittest import mock

import msgspec

import holdfast
from holdfast import Settings
from holdfast.checkpoint import (
    CounterPosition,
    DeltaPosition,
    FilesPosition,
    IcebergPosition,
    JournalPosition,
    KafkaPosition,
    MysqlPosition,
    OpenPosition,
    Part,
    PostgresPosition,
    PostgresSnapshot,
    Store,
    TableProgress,
    topology,
)
from holdfast.checkpoint.replication.fork import fork_pipeline
from holdfast.clock import ManualClock
from holdfast.format.manifest import Versions
from holdfast.format.position import Position
from holdfast.ids import SeededIds
from holdfast.storage import LocalStorage
from holdfast.storage.local.reserve import RESERVE

PIPELINE = "golden"
TOPIC_ID = "AAAAAAAAQACAAAAAAAAAAQ"
SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
VERSIONS = Versions(holdfast="0.1.0", python="3.11.0", spark="4.3.0", pyarrow="18.0.0")
SETTINGS = Settings(retain=100, inline_bytes_max=16)
TOPOLOGY = topology(
    Part(name="orders", kind="source", what="kafka", schema="customer string, amount double"),
    Part(name="events", kind="source", what="files", schema="id long"),
    Part(name="changes", kind="source", what="postgres"),
    Part(name="binlog", kind="source", what="mysql"),
    Part(name="rates", kind="table", what="delta", inputs=["changes"], params={"mode": "full"}),
    Part(
        name="totals", kind="operator", what="sum", inputs=["orders"], keys=["customer"],
        stateful=True, version=2,
    ),
    Part(name="counter", kind="operator", what="count", inputs=["events"]),
    Part(name="seen", kind="operator", what="dedupe", inputs=["events"]),
    Part(name="lake", kind="sink", what="parquet", inputs=["totals"]),
    Part(name="bus", kind="sink", what="kafka", inputs=["totals"]),
)  # fmt: skip


def changes(number: int) -> PostgresPosition:
    """A snapshot of two tables, then the stream."""
    if number >= 2:
        return PostgresPosition(slots={"slot": f"16/{number + 1:X}"})
    tables = {"orders": TableProgress(rows=5, done=True), "items": TableProgress(rows=number + 1)}
    snapshot = PostgresSnapshot(xmin=7, xmax=11, xip=[8, 9])
    return PostgresPosition(
        slots={"slot": f"16/{number + 1:X}"}, phase="snapshot", snapshot=snapshot, tables=tables
    )


def others(number: int) -> dict[str, Position]:
    """Where sources of the other connectors stand, in a pipeline of their own."""
    return {
        "lake": DeltaPosition(table="t", version=number + 1, files=number, phase="snapshot")
        if number == 0
        else DeltaPosition(table="t", version=number + 1),
        "ice": IcebergPosition(table="i", snapshot=900 + number, sequence=number),
        "log": JournalPosition(
            journal="j", segment=0, offset=number * 100, sequence=number, chain=f"{number}" * 64
        ),
        "queue": OpenPosition(
            kind="acme-queue", offsets={"p0": f"{number:06d}"}, order="fixed", meta={"region": "eu"}
        ),
        "feed": OpenPosition(kind="acme-feed", offsets={"": f"token-{9 - number}"}, order="none"),
    }


def step(store: Store, number: int, *, label: str | None = None) -> str:
    """Commit one epoch; returns the id of its checkpoint."""
    draft = store.draft(label=label)
    offsets = {str(p): number * 10 + p for p in range(2 + number // 3)}
    draft.set_source(
        "orders",
        KafkaPosition(topics={"orders": offsets}, topic_ids={"orders": TOPIC_ID}),
        watermark_us=1_700_000_000_000_000 + number,
    )
    log = draft.put_offsets("events", "\n".join(f"file-{n}" for n in range(number + 1)).encode())
    draft.set_source("events", FilesPosition(files=number + 1, log=log), idle=number == 2)
    draft.set_source("changes", changes(number))
    draft.set_source("binlog", MysqlPosition(gtids=[f"{SERVER}:1-{number + 5}"]))
    snapshot = number in (0, 4)
    runs = [
        draft.write_run("totals", p, f"{number}:{p};".encode() * 30, snapshot=snapshot, rows=5)
        for p in range(2)
    ]
    if snapshot:
        draft.reset_files("totals")
    if number == 3:  # as a compaction does: what a segment lists is gone
        shared = store.current.inventory.parts[0] if store.current else ()
        draft.remove_files("totals", [next(iter(shared)).key])
    draft.set_operator("totals", trace="latest", rows=10 + number, keys=5, partitions=2, version=2)
    for run in runs:
        epoch = int(draft.epoch)
        draft.add_file(msgspec.structs.replace(run, epoch_low=epoch, epoch_high=epoch))
    rates: Position = CounterPosition(partitions={"version": number})
    table = draft.write_run("rates", 0, b"rates" * 10, snapshot=True, rows=1)
    draft.set_operator("rates", trace="bag", files=[table], rows=1, keys=1, position=rates)
    draft.put_small("counter", str(number).encode(), keys=1)
    draft.put_small("seen", b"seen-%d-" % number * 6, version=3)
    draft.stage_sink("lake", f"staged/{draft.epoch}", replay="retracts")
    draft.stage_sink("bus", f"txn-{draft.epoch}-\u00fc", replay="deduplicates")
    draft.set_watermark(1_700_000_000_000_000)
    draft.set_log(PostgresPosition(slots={"slot": f"16/{number + 1:X}"}))
    draft.add_processed(100)
    draft.set_properties({"note": "golden \u2713"})
    return str(store.commit(draft).checkpoint)


def build(root: Path) -> None:
    """Write the store below an empty directory."""
    clock, ids = ManualClock(), SeededIds(1)
    storage = LocalStorage(root, ids=SeededIds(2))

    def opened(resume: str | None = None) -> Store:
        clock.advance_ms(60_000)
        return holdfast.checkpoint.open_store(
            storage, PIPELINE, topology=TOPOLOGY, settings=SETTINGS, resume=resume, clock=clock,
            ids=ids, spark="4.3.0",
        )  # fmt: skip

    with opened() as store:
        for number in range(3):
            clock.advance_ms(1_000)
            last = step(store, number, label="nightly" if number == 1 else None)
            store.record_outcome(last, "lake", "committed")
            store.record_outcome(last, "bus", "failed", reason="broker away")
            store.record_outcome(last, "bus", "committed")
        store.pin("gold", last, note="the good one")
        store.compact()
    with opened() as store:
        clock.advance_ms(1_000)
        left = step(store, 3)
        store.record_outcome(left, "lake", "aborted", reason="rolled back")
    with opened(resume=last) as store:
        clock.advance_ms(1_000)
        newest = step(store, 4)
        store.record_outcome(newest, "lake", "committed")
        store.delete(str(store.list()[-1].checkpoint))
    clock.advance_ms(60_000)
    fork_pipeline(storage, PIPELINE, "gold", "branch", clock=clock, ids=ids)
    build_others(storage, clock, ids)
    storage.close()


def build_others(storage: LocalStorage, clock: ManualClock, ids: SeededIds) -> None:
    """A pipeline with sources of all connectors that the first one does not have."""
    parts = [Part(name=name, kind="source", what=name) for name in others(0)]
    shape = topology(*parts)
    with holdfast.checkpoint.open_store(
        storage, "positions", topology=shape, clock=clock, ids=ids
    ) as store:
        for number in range(2):
            clock.advance_ms(1_000)
            draft = store.draft()
            for name, position in others(number).items():
                draft.set_source(name, position)
            store.commit(draft)


def main(target: Path) -> None:
    """Replace the stores of the directory by newly built ones."""
    for name in (PIPELINE, "branch", "positions"):
        shutil.rmtree(target / name, ignore_errors=True)
    target.mkdir(parents=True, exist_ok=True)
    with (
        mock.patch("holdfast.checkpoint.commit.protocol.software", return_value=VERSIONS),
        mock.patch("holdfast.checkpoint.recovery.open.platform.node", return_value="golden-host"),
        mock.patch("holdfast.checkpoint.recovery.open.__version__", VERSIONS.holdfast),
        mock.patch("holdfast.checkpoint.segments.LISTED_MAX", 4),
        mock.patch("holdfast.checkpoint.segments.SEGMENT_FILES", 2),
    ):
        build(target)
    (target / RESERVE).unlink(missing_ok=True)  # no part of a store


if __name__ == "__main__":
    main(Path(sys.argv[1]))
