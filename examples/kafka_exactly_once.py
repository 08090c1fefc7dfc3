"""Orders from Kafka, totals to Kafka; the pipeline is killed again and again, and nothing is lost.

    make kafka-demo

starts a broker on this machine and runs this file while it is up.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import holdfast as hf

SERVERS = os.environ.get("HOLDFAST_KAFKA_BROKER", "127.0.0.1:9092")
JARS = os.environ.get("HOLDFAST_KAFKA_JARS", "")
ORDERS, KILLS = 30_000, 3


def pipeline(store: str) -> hf.Pipeline:
    """The pipeline: what a user would write."""
    pipe = hf.Pipeline(
        "demo",
        store=store,
        partitions=2,
        master="local[2]",
        spark_config={"spark.jars": JARS, "spark.log.level": "OFF"},
    )
    orders = pipe.source(
        "orders",
        hf.sources.Kafka(
            SERVERS, "orders", format="json", schema="id long, amount long", rows_max=2_000
        ),
    )
    totals = orders.group_by("amount").agg(n=hf.count(), name="totals")
    pipe.sink("orders_out", orders, hf.sinks.Kafka(SERVERS, "copies"))
    pipe.sink("totals_out", totals, hf.sinks.Kafka(SERVERS, "totals", mode="upsert", key="amount"))
    return pipe


def fill() -> None:
    """Topics, and orders in transactions, one in five of which is aborted."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": SERVERS})
    topics = [NewTopic(name, 2, 1) for name in ("orders", "copies", "totals")]
    for made in admin.create_topics(topics).values():
        made.result()
    producer = Producer({"bootstrap.servers": SERVERS, "transactional.id": "shop", "log_level": 0})
    producer.init_transactions()
    for first in range(0, ORDERS, 1_000):
        for aborted in (True, False) if first % 5_000 == 0 else (False,):
            producer.begin_transaction()
            for number in range(first, first + 1_000):
                order = {"id": -1 if aborted else number, "amount": number % 10}
                producer.produce("orders", json.dumps(order))
            if aborted:
                producer.flush()
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def read(topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """What a consumer with `read_committed` sees."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": SERVERS,
            "group.id": "demo-reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(2)])
    found: list[tuple[bytes | None, bytes | None]] = []
    ended: set[int | None] = set()
    while len(ended) < 2:
        for message in consumer.consume(10_000, 0.2):
            if message.error() is None:
                found.append((message.key(), message.value()))
            else:
                ended.add(message.partition())
    consumer.close()
    return found


def main() -> None:
    """Kill it some times, let it finish, and count."""
    fill()
    print(f"{ORDERS} orders are in Kafka, and 6000 of aborted transactions")
    with tempfile.TemporaryDirectory() as store:
        for kill in range(KILLS + 1):
            child = subprocess.Popen(  # noqa: S603 - this file
                [sys.executable, __file__, store], stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            epochs = 0
            for line in child.stdout or ():
                epochs += line.startswith("epoch")
                if epochs == 2 and kill < KILLS:
                    time.sleep(random.random() / 2)
                    os.killpg(child.pid, signal.SIGKILL)
                    break
            child.wait()
            print("killed with kill -9" if kill < KILLS else "ran to the end", flush=True)
    ids = [json.loads(value or b"{}")["id"] for _, value in read("copies")]
    counts = {key: json.loads(value or b"{}")["n"] for key, value in read("totals")}
    print(f"in the output: {len(ids)} orders, {len(set(ids))} of them distinct")
    print(f"sum of the counts: {sum(counts.values())}")
    assert sorted(ids) == list(range(ORDERS))
    assert sum(counts.values()) == ORDERS
    print("exactly once")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        pipeline(sys.argv[1]).run(on_epoch=lambda report: print("epoch", report.epoch, flush=True))
    else:
        main()
