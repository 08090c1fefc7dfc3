"""A query that reads Kafka: saved in mid-run, restored twice and gone on with; prints facts.

A program of its own: the connector's jars must be there when the JVM starts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast as hf
from tests.helpers.guard_queries import LAYOUTS, Collected, use_layout

ROWS, SAVE_IN = 120, (2, 4)


def session(jars: Path) -> SparkSession:
    """A Spark that has the connector."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(map(str, sorted(jars.glob("*.jar")))))
    spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run(spark, broker, topic, location, collected) -> None:
    """Counts and sums by key, twenty messages a batch."""
    events = (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker)
        .option("subscribe", topic).option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 20).load()
    )  # fmt: skip
    value = F.col("value").cast("string").cast("long")
    totals = events.groupBy(F.col("key").cast("string")).agg(F.count("*"), F.sum(value))
    writer = totals.writeStream.option("checkpointLocation", str(location)).outputMode("update")
    writer.trigger(availableNow=True).foreachBatch(collected).start().awaitTermination()


def main(folder: Path, jars: Path, broker: str) -> None:
    """Every layout: what the query gave out, and what it gave out again."""
    spark = session(jars)
    topic = f"guard-{os.getpid()}"
    messages = spark.range(ROWS).selectExpr("string(id % 9) as key", "string(id) as value")
    messages.write.format("kafka").option("kafka.bootstrap.servers", broker).option(
        "topic", topic
    ).save()
    facts = []
    for layout in LAYOUTS:
        use_layout(spark, layout)
        location, store = folder / layout, folder / "savepoints"

        def saving(batch, location=location, store=store):
            if batch in SAVE_IN:
                hf.guard.save(location, store, f"during-{batch}")

        straight = Collected(saving)
        run(spark, broker, topic, location, straight)
        again = {}
        for batch in SAVE_IN:
            into = folder / f"{layout}-{batch}"
            hf.guard.restore(location, store, f"during-{batch}", into=into)
            hf.guard.protect(spark, into)
            rest = Collected()
            run(spark, broker, topic, into, rest)
            again[batch] = rest.batches
        ok = hf.guard.verify(location, store).ok
        facts.append({"layout": layout, "straight": straight.batches, "again": again, "ok": ok})
    print(json.dumps(facts))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
