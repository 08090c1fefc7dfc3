"""From Kafka to Kafka through kills of the driver, of executors and of the broker: exactly once.

Two topics of orders by pattern and a compacted topic of customers, written by transactions of which
some are aborted; a join and an aggregate; three sinks, read `read_committed`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import holdfast as hf
from tests.helpers.effort import SOAK
from tests.helpers.kafka_broker import connector_jars, kafka_broker
from tests.helpers.kafka_world import KafkaWorld
from tests.helpers.paths import PROGRAMS, child_environment
from tests.helpers.servers import UnavailableError

pytestmark = [pytest.mark.spark, pytest.mark.server]
SCRIPT = PROGRAMS / "killed_kafka.py"
ORDERS, KILLS = (1_000_000, 50) if SOAK else (6_000, 3)
CUSTOMERS = 100
LANDS = ("at", "ch", "de", "fr", "it")


@pytest.fixture
def world(tmp_path):
    """A broker of this test alone: it is killed, too."""
    try:
        with kafka_broker(tmp_path / "kafka") as broker:
            yield KafkaWorld(broker.address, broker)
    except UnavailableError as reason:
        pytest.skip(str(reason))


def fill(world):
    """The inputs; returns what a committed reader must count."""
    for name in ("orders-a", "orders-b"):
        world.create(name, 3, retention_ms=86_400_000, segment_bytes=1 << 20)
    world.create("customers", 2, cleanup_policy="compact", segment_ms=1_000)
    for name in ("rows", "totals", "changes"):
        world.create(name, 2)
    lands = {n: LANDS[n % len(LANDS)] for n in range(CUSTOMERS)}
    world.send(
        "customers",
        [(str(n), json.dumps({"customer": n, "land": land})) for n, land in lands.items()],
    )
    producer = world.producer("the-shop")
    rng, kept, chunk = random.Random(7), [], ORDERS // 40
    for number in range(44):
        aborted = number % 11 == 10
        producer.begin_transaction()
        first = len(kept)
        batch = [
            (10**9 + n if aborted else n, rng.randrange(CUSTOMERS), rng.randrange(1_000))
            for n in range(first, first + chunk)
        ]
        for topic, part in (("orders-a", batch[::2]), ("orders-b", batch[1::2])):
            rows = [(str(i), json.dumps({"id": i, "customer": c, "amount": a})) for i, c, a in part]
            world.send(topic, rows, producer)
        if aborted:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
            kept += batch
    assert len(kept) == ORDERS
    totals = {}
    for _, customer, amount in kept:
        n, s = totals.get(lands[customer], (0, 0))
        totals[lands[customer]] = (n + 1, s + amount)
    return totals


def start(home, world, master="local[2]"):
    names = [
        "orders=orders-.",
        "customers=customers",
        "rows=rows",
        "totals=totals",
        "changes=changes",
    ]
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(home), world.servers, ",".join(connector_jars()), master, *names],
        stdout=subprocess.PIPE, stderr=(home / "stderr").open("ab"), text=True,
        start_new_session=True,
        env=child_environment() | {"HOLDFAST_KAFKA_ROWS_MAX": str(ORDERS // (120 if SOAK else 15))},
    )  # fmt: skip


def until(process, epochs, *, may_fail=False):
    """Lines up to so many epochs; returns whether it ended by itself."""
    seen = 0
    for line in process.stdout:
        if line.startswith("done"):
            process.wait()
            return True
        if line.startswith("epoch"):
            seen += 1
            if seen >= epochs:
                return False
    process.wait()
    assert may_fail, (
        f"the pipeline failed with {process.returncode}: see stderr of the test's folder"
    )
    return False


def kill_all(process):
    """Driver, JVM, executors and workers, as when a machine dies."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def kill_executor(process):
    """One executor of a local cluster; Spark starts another."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command and os.getpgid(int(pid)) == process.pid:
                os.kill(int(pid), signal.SIGKILL)
                return
        except OSError:
            continue
    raise AssertionError("no executor was found")


def series(home, world, kinds, seed):
    """Kill one thing after the other; a driver that gives up meanwhile is started again."""
    rng, done = random.Random(seed), False
    print(f"seed {seed}")
    for number, kind in enumerate(kinds):
        process = start(
            home, world, "local-cluster[1,2,1024]" if kind == "executor" else "local[2]"
        )
        try:
            done = until(process, rng.randint(1, 2))
            assert not done, "it ended before it was killed often enough"
            time.sleep(rng.random() * 0.5)
            if kind == "broker":
                world.broker.kill()
                time.sleep(rng.random())
                world.broker.start()
                done = until(process, 1, may_fail=True)
            elif kind == "executor":
                kill_executor(process)
                done = until(process, 1)
        finally:
            kill_all(process)
        print(f"killed {kind}, {number + 1} of {len(kinds)}", flush=True)
    if not done:
        last = start(home, world)
        try:
            assert until(last, 10**9), (home / "stderr").read_text()[-3_000:]
        finally:
            kill_all(last)


def check(home, world, totals):
    """0 lost and 0 double in every output, as a committed reader sees it."""
    ids = Counter(json.loads(m.value())["id"] for m in world.read("rows"))
    assert len(ids) == ORDERS, f"lost {ORDERS - len(ids)}"
    assert max(ids) == ORDERS - 1, "rows of aborted transactions came through"
    assert max(ids.values()) == 1, f"double {sum(n > 1 for n in ids.values())}"
    shown = {key.decode(): json.loads(value) for key, value in world.table("totals").items()}
    assert {land: (row["n"], row["s"]) for land, row in shown.items()} == totals
    net = Counter()
    for message in world.read("changes"):
        row = json.loads(message.value())
        net[(row["land"], row["n"], row["s"])] += row["_weight"]
    assert {row: n for row, n in net.items() if n} == {(land, *v): 1 for land, v in totals.items()}
    assert hf.checkpoint.verify_store(hf.checkpoint.read_store(home / "cp", "p"), deep=True).ok


def test_kills_of_driver_broker_and_executor_lose_nothing_and_double_nothing(tmp_path, world):
    """Kills at random moments; every committed order is counted once, no aborted one is."""
    totals = fill(world)
    seed = int(os.environ.get("HOLDFAST_KILLS_SEED", time.time()))
    kinds = [("driver", "broker", "executor")[n % 3] for n in range(KILLS)]
    series(tmp_path, world, kinds, seed)
    check(tmp_path, world, totals)
