"""A pipeline with a journal, a join, an aggregate and every kind of sink, in a process to be killed."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

import holdfast as hf
from holdfast.journal import Event, JournalWriter
from holdfast.runtime import task_counts

SOAK = os.environ.get("HOLDFAST_SOAK") == "1"  # nothing of the tests is loaded here
ROWS, ROWS_PER_EPOCH = (60_000, 120) if SOAK else (2_000, 125)
PEOPLE = 50


def into_sqlite(path: Path):
    """Writes an epoch's rows and its key in one transaction; a key that is there is done."""

    def handler(rows, epoch, key):
        found = rows.toArrow().select(["id", "k", "x"]).to_pylist()
        with sqlite3.connect(path, timeout=60) as base:
            base.execute("CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY)")
            base.execute("CREATE TABLE IF NOT EXISTS rows (id INTEGER, k INTEGER, x INTEGER)")
            if base.execute("INSERT OR IGNORE INTO keys VALUES (?)", [key]).rowcount:
                base.executemany("INSERT INTO rows VALUES (:id, :k, :x)", found)

    return handler


def write_people(home: Path) -> None:
    """The journal that the pipeline reads; an epoch takes whole appends."""
    with JournalWriter(home / "people") as journal:
        for number in range(PEOPLE):
            payload = f'{{"k": {number}, "name": "p{number}"}}'
            journal.append([Event(entity="e", kind="k", payload=payload)])


def main() -> None:
    # Epochs of a few rows get one task, larger ones all partitions. Not at import: see killed_driver.
    task_counts.ROWS_PER_TASK = task_counts.ROWS_PER_TASK_MAX = 50
    task_counts.ROWS_PER_RUN = 0
    home, partitions = Path(sys.argv[1]), int(sys.argv[2])
    pipe = hf.Pipeline(
        "p",
        store=home / "cp",
        partitions=partitions,
        master="local[2]",
        spark_config={"spark.driver.memory": "1g", "spark.log.level": "OFF"},
    )
    orders = pipe.source(
        "orders",
        hf.sources.Generator(
            {"id": "id", "k": f"pmod(id * 7919, {PEOPLE})", "x": "id % 7"},
            rows=ROWS,
            rows_per_epoch=ROWS_PER_EPOCH,
        ),
    )
    people = pipe.source(
        "people",
        hf.sources.Journal(
            home / "people", payload="k long, name string", events_max=1 if SOAK else 10
        ),
    ).select("k", "name")
    named = orders.join(people, "k", "left", name="named")
    totals = named.group_by("name").agg(
        n=hf.count(), s=hf.sum("x"), d=hf.count_distinct("x"), name="totals"
    )
    pipe.sink("named_out", named, hf.sinks.Parquet(str(home / "named")))
    by_tasks = {"driver_bytes": 0, "bucket_bytes": 1_000}  # and buckets are split
    pipe.sink(
        "totals_out", totals, hf.sinks.Parquet(str(home / "totals"), mode="upsert", **by_tasks)
    )
    pipe.sink("events", orders, hf.sinks.Journal(home / "events", entity="=order", kind="=came"))
    pipe.sink("base", orders, hf.sinks.Function(into_sqlite(home / "base.sqlite")))
    print("ready", flush=True)
    pipe.run(on_epoch=lambda report: print(f"epoch {report.epoch}", flush=True))
    print("done", flush=True)


if __name__ == "__main__":
    main()
