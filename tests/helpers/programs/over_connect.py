"""A query over Spark Connect, saved by `attach`, checked, restored and gone on with; prints facts.

A program of its own: one process has either a classic session or one of Connect.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.errors import InvalidInputError


def start(spark, location):
    """Counts by key from a source that gives the same rows again."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = frame.groupBy((F.col("value") % 7).alias("g")).count()
    writer = counts.writeStream.option("checkpointLocation", str(location)).outputMode("complete")
    name = Path(location).name
    return writer.format("memory").queryName(name).trigger(processingTime="0 seconds").start()


def main(folder: Path) -> None:
    """Everything that a client of Connect can ask of the guard."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    location, store, again = folder / "first", folder / "savepoints", folder / "again"
    query = start(spark, location)
    refused = ""
    try:
        hf.guard.attach(query, store)
    except InvalidInputError as error:
        refused = error.kind
    attachment = hf.guard.attach(query, store, every=3, checkpoint_location=location)
    waited = attachment.wait(2, 90)
    query.stop()
    attachment.stop()
    spark.conf.set("spark.holdfast.guard.store", str(store))
    report = hf.guard.protect(spark, location)
    first = attachment.saved[0]
    hf.guard.restore(location, store, first.checkpoint, into=again)
    spark.conf.unset("spark.holdfast.guard.store")
    hf.guard.protect(spark, again)
    query = start(spark, again)
    while not (again / "commits" / str(first.batch + 2)).exists():
        query.awaitTermination(0.1)
    query.stop()
    last = hf.guard.save(again, folder / "second").batch
    rows = {row["g"]: row["count"] for row in spark.table("again").collect()}
    facts = {
        "session": type(spark).__module__, "refused": refused, "waited": waited,
        "batches": [saved.batch for saved in attachment.saved],
        "errors": [str(error) for error in attachment.errors],
        "ok": report.ok, "covered": report.covered, "last": last, "rows": rows,
    }  # fmt: skip
    print(json.dumps(facts))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
