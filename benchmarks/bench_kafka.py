"""How long is a message on its way through an aggregation, against Structured Streaming's source?

    python -m tests.helpers.kafka_broker python benchmarks/bench_kafka.py [seconds] [rates…]

One broker, one topic, one aggregation by key in two partitions, both sides one after the other at
every rate, by the same connector jar. A producer sends at a fixed rate and writes its clock into
each message; the end-to-end latency of a message is the time from there to the epoch (batch) that
has published it. Structured Streaming writes through foreachBatch, Holdfast into a topic by a
transaction, which costs more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time

from holdfast.clock import SystemClock

SERVERS, JARS = (
    os.environ.get("HOLDFAST_KAFKA_BROKER", ""),
    os.environ.get("HOLDFAST_KAFKA_JARS", ""),
)
KEYS, WARM_S = 10_000, 15.0


def now():
    """The wall clock, the same in all processes of this machine."""
    return SystemClock().wall_us() / 1e6


def topic(name):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": SERVERS, "log_level": 0})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    time.sleep(1)


def produce(name, rate, seconds, stop):
    """Messages at a rate, in slices of 20 ms, each with the time when it was sent."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": SERVERS, "linger.ms": 5, "log_level": 0})
    began, sent = now(), 0
    while not stop.is_set() and now() - began < seconds:
        due = int((now() - began) * rate)
        for number in range(sent, due):
            value = f'{{"k":{number * 7919 % KEYS},"v":1,"at":{now():.4f}}}'
            while True:
                try:
                    producer.produce(name, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        sent = due
        producer.poll(0)
        time.sleep(0.02)
    producer.flush()


def holdfast_side(name, home):
    """Newest and oldest clock of an epoch come with the aggregate's rows; `done` is the publishing."""
    import holdfast as hf

    pipe = hf.Pipeline(
        "bench", store=f"{home}/cp", partitions=2, master="local[2]",
        spark_config={"spark.jars": JARS, "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"},
    )  # fmt: skip
    rows = pipe.source(
        "in",
        hf.sources.Kafka(
            SERVERS, name, format="json", schema="k int, v int, at double", start="latest"
        ),
    )
    totals = rows.group_by("k").agg(
        n=hf.sum("v"), newest=hf.max("at"), oldest=hf.min("at"), name="t"
    )
    pipe.sink("out", totals, hf.sinks.Kafka(SERVERS, f"{name}-out", mode="upsert", key="k"))
    epochs = {}

    def epoch(report):
        epochs[report.checkpoint.id] = report

    def done(report):
        found = epochs.pop(report.checkpoint, None)
        if found is not None:
            print(json.dumps({"at": now(), "rows": found.rows, "ms": found.total_ms,
                              "left": found.backlog["in"].total - found.backlog["in"].done}), flush=True)  # fmt: skip

    pipe.run(forever=True, poll_ms=10, on_epoch=epoch, on_checkpoint=done)


def spark_side(name, home):
    """The same query as a stream, with RocksDB state and changelog checkpoints."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    spark = (
        SparkSession.builder.master("local[2]").config("spark.jars", JARS)
        .config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stateStore.providerClass",
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )  # fmt: skip
    raw = (
        spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", name).option("startingOffsets", "latest").load()
    )  # fmt: skip
    body = F.from_json(F.col("value").cast("string"), "k int, v int, at double").alias("b")
    totals = raw.select(body).select("b.*").groupBy("k").agg(
        F.sum("v").alias("n"), F.max("at").alias("newest"), F.min("at").alias("oldest")
    )  # fmt: skip

    def write(batch, _):
        batch.write.format("noop").mode("overwrite").save()

    query = totals.writeStream.outputMode("update").foreachBatch(write).option(
        "checkpointLocation", f"{home}/cp"
    ).start()  # fmt: skip
    seen = -1
    while query.isActive:
        progress = query.lastProgress
        if progress and progress["batchId"] != seen and progress["numInputRows"]:
            seen = progress["batchId"]
            print(json.dumps({"at": now(), "rows": progress["numInputRows"],
                              "ms": progress["durationMs"]["triggerExecution"], "left": 0}), flush=True)  # fmt: skip
        time.sleep(0.005)


def measure(side, rate, seconds):
    """One side at one rate: (epoch ms, latency ms) as medians and p99, rows that are left."""
    name = f"bench-{side}-{rate}-{time.time_ns()}"
    topic(name)
    topic(f"{name}-out")
    stop, lines = threading.Event(), []
    with tempfile.TemporaryDirectory() as home:
        child = subprocess.Popen(
            [sys.executable, __file__, side, name, home], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        reader = threading.Thread(target=lambda: lines.extend(child.stdout), daemon=True)
        reader.start()
        time.sleep(12)  # it has to know where the end of the topic is
        began = now()
        try:
            produce(name, rate, seconds + WARM_S, stop)
            time.sleep(2)
        finally:
            child.terminate()
            child.wait()
    epochs = [json.loads(line) for line in lines if line.startswith("{")]
    return summary(epochs, rate, began, seconds)


def summary(epochs, rate, began, seconds):
    """Latencies by when each message was sent: the n-th message of a rate has a known time."""
    total, latency, times = 0, [], []
    for epoch in epochs:
        first, total = total, total + epoch["rows"]
        if epoch["at"] < began + WARM_S or epoch["at"] > began + WARM_S + seconds:
            continue
        times.append(epoch["ms"])
        numbers = range(first, total, max(1, epoch["rows"] // 50))
        latency += [(epoch["at"] - (began + number / rate)) * 1e3 for number in numbers]
    if not latency:
        return {"epoch_ms": None, "median_ms": None, "p99_ms": None, "rows_s": 0}
    latency.sort()
    times.sort()
    return {
        "epoch_ms": round(times[len(times) // 2]),
        "median_ms": round(latency[len(latency) // 2]),
        "p99_ms": round(latency[int(len(latency) * 0.99)]),
        "rows_s": round(total / (epochs[-1]["at"] - began)),
    }


def main():
    if len(sys.argv) > 1 and sys.argv[1] in ("holdfast", "spark"):
        (holdfast_side if sys.argv[1] == "holdfast" else spark_side)(*sys.argv[2:4])
        return
    if not SERVERS:
        sys.exit(
            "run it beside a broker: python -m tests.helpers.kafka_broker python benchmarks/bench_kafka.py"
        )
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    print(
        f"{'rows/s':>8} {'side':>10} {'epoch ms':>9} {'median ms':>10} {'p99 ms':>8} {'rows/s out':>11}"
    )
    for rate in map(int, sys.argv[2:] or (5_000, 20_000, 50_000)):
        for side in ("spark", "holdfast"):
            found = measure(side, rate, seconds)
            print(f"{rate:>8} {side:>10} " + " ".join(f"{found[n]!s:>9}" for n in
                  ("epoch_ms", "median_ms", "p99_ms", "rows_s")), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
