"""What does a durable, hash-chained append cost, and how fast does a journal open and answer?

Run `python benchmarks/bench_journal.py [--quick] [--dir DIR] [--markdown]`. Both sides of every
comparison alternate inside one run; figures are medians over rounds. SQLite runs in WAL mode with
synchronous=FULL, one transaction per batch, the same columns, and indexes on id and entity.
"""

import argparse
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import pyarrow as pa
from blake3 import blake3

from holdfast.journal import (
    Durability,
    Event,
    JournalFiles,
    JournalReader,
    JournalSettings,
    JournalWriter,
    Query,
    RandomEventIds,
    verify_journal,
)
from holdfast.journal.batch import prepare

SIZE = 1000
ROWS: list[tuple[str, str, str]] = []


def report(what, value, unit, note=""):
    ROWS.append((what, f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2f} {unit}", note))
    print(f"{what:64} {ROWS[-1][1]:>20}   {note}", flush=True)


def batch(number=0):
    """1,000 events: 5,000 customers, two kinds, one scope, 64 bytes of payload."""
    customers = [f"customer-{(number * 7919 + i * 31) % 5000}" for i in range(SIZE)]
    kinds = pa.DictionaryArray.from_arrays(
        pa.array([i % 2 for i in range(SIZE)], pa.int32()), ["order.placed", "order.paid"]
    )
    scopes = pa.DictionaryArray.from_arrays(pa.array([0] * SIZE, pa.int32()), ["eu"])
    return pa.record_batch(
        {"entity": customers, "kind": kinds, "scope": scopes, "payload": [b"x" * 64] * SIZE}
    )


class Sqlite:
    def __init__(self, path):
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.db.execute("pragma journal_mode=wal")
        self.db.execute("pragma synchronous=full")
        self.db.execute(
            "create table e(seq integer primary key, id blob, entity text, kind text, "
            "scope text, wall integer, payload blob)"
        )
        self.db.execute("create unique index by_id on e(id)")
        self.db.execute("create index by_entity on e(entity)")
        self.ids = RandomEventIds()

    def append(self, rows):
        raw = self.ids.ids(len(rows), time.time_ns() // 1000).tobytes()
        self.db.execute("begin")
        self.db.executemany(
            "insert into e(id,entity,kind,scope,wall,payload) values(?,?,?,?,?,?)",
            [(raw[16 * i : 16 * i + 16], *row) for i, row in enumerate(rows)],
        )
        self.db.execute("commit")


def timed(call, rounds):
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - start) / rounds


def bench_append(root, rounds, per_round):
    one = batch()
    rows = [
        (e, k, "eu", 5, b"x" * 64)
        for e, k in zip(
            one.column("entity").to_pylist(), one.column("kind").to_pylist(), strict=True
        )
    ]
    data = bytes(len(prepare(one, RandomEventIds(), 1).body) + 200)
    raw = os.open(root / "raw", os.O_CREAT | os.O_WRONLY)
    sqlite = Sqlite(root / "a.sqlite")
    steps = JournalWriter(root / "steps", JournalSettings(durability=Durability.BATCH))
    piped = JournalWriter(root / "piped", JournalSettings(durability=Durability.GROUP))

    def bare():
        os.write(raw, data)
        os.fdatasync(raw)

    flight: deque = deque()

    def pipelined():
        flight.append(piped.submit(one))
        if len(flight) >= 8:
            flight.popleft().wait()

    figures: dict[str, list[float]] = {"bare": [], "steps": [], "piped": [], "sqlite": []}
    for _ in range(rounds):
        figures["bare"].append(timed(bare, per_round))
        figures["steps"].append(timed(lambda: steps.append(one), per_round))
        figures["piped"].append(timed(pipelined, per_round))
        figures["sqlite"].append(timed(lambda: sqlite.append(rows), max(per_round // 10, 2)))
    while flight:
        flight.popleft().wait()
    steps.close()
    piped.close()
    os.close(raw)
    size = len(data)
    middle = {name: statistics.median(values) for name, values in figures.items()}
    ratio = {
        n: statistics.median(v / b for v, b in zip(figures[n], figures["bare"], strict=True))
        for n in figures
    }
    report(
        "bare write + fdatasync of the same bytes",
        middle["bare"] * 1e6,
        "us/batch",
        f"{size:,} bytes",
    )
    report(
        "durable append, one producer, submit with 8 in flight",
        SIZE / middle["piped"],
        "events/s",
        f"{ratio['piped']:.2f} x bare",
    )
    report(
        "durable append, one producer, append and wait each time",
        SIZE / middle["steps"],
        "events/s",
        f"{ratio['steps']:.2f} x bare",
    )
    report(
        "SQLite WAL, synchronous=FULL, one transaction per batch",
        SIZE / middle["sqlite"],
        "events/s",
        f"{ratio['sqlite']:.2f} x bare",
    )


def bench_threads(root, rounds, per_thread):
    figures: dict[str, list[float]] = {"journal": [], "sqlite": []}
    sqlite = Sqlite(root / "t.sqlite")
    lock = threading.Lock()
    with JournalWriter(root / "threads", JournalSettings(durability=Durability.GROUP)) as writer:

        def journal():
            writer.append(
                [Event(entity="customer-1", kind="order.placed", scope="eu", payload=b"x" * 64)]
            )

        def table():
            with lock:
                sqlite.append([("customer-1", "order.placed", "eu", 5, b"x" * 64)])

        for _ in range(rounds):
            for name, call in (("journal", journal), ("sqlite", table)):
                threads = [
                    threading.Thread(target=lambda c=call: [c() for _ in range(per_thread)])
                    for _ in range(16)
                ]
                start = time.perf_counter()
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                figures[name].append(16 * per_thread / (time.perf_counter() - start))
    report(
        "single events, 16 threads, group commit", statistics.median(figures["journal"]), "events/s"
    )
    report(
        "SQLite, single events, 16 threads, one transaction each",
        statistics.median(figures["sqlite"]),
        "events/s",
    )


def build(root, events):
    settings = JournalSettings(durability=Durability.INTERVAL, interval_ms=200)
    with JournalWriter(root, settings) as writer:
        batches = [batch(n) for n in range(50)]
        for number in range(events // SIZE):
            writer.append(batches[number % 50])


def opened(root, times):
    found = []
    for _ in range(times):
        start = time.perf_counter()
        with JournalReader(root) as reader:
            found.append(time.perf_counter() - start)
            how = reader.report
    return statistics.median(found) * 1000, how


def opened_writer(root, times):
    found = []
    for _ in range(times):
        start = time.perf_counter()
        writer = JournalWriter(root)
        found.append(time.perf_counter() - start)
        writer.close()
    return statistics.median(found) * 1000


def bench_open(root, sizes):
    for events in sizes:
        place = root / f"open{events}"
        build(place, events)
        name = f"{events / 1e6:g} M events"
        with_it, how = opened(place, 5)
        report(
            f"open with index checkpoint, {name}, reader",
            with_it,
            "ms",
            f"{how.frames_read} frames read",
        )
        report(f"open with index checkpoint, {name}, writer", opened_writer(place, 3), "ms")
        (place / "index.ckpt").rename(place / "aside")
        without, how = opened(place, 2)
        report(
            f"open by replay, {name}, reader",
            without,
            "ms",
            f"{how.frames_read} frames, {how.bytes_read:,} bytes read",
        )
        (place / "aside").rename(place / "index.ckpt")
    return place


def bench_verify(place, rounds):
    paths = sorted((place / "segments").glob("*.seg"))
    total = sum(path.stat().st_size for path in paths)
    figures: dict[str, list[float]] = {"verify": [], "blake3": []}
    for _ in range(rounds):
        start = time.perf_counter()
        assert verify_journal(place).ok
        middle = time.perf_counter()
        for path in paths:
            blake3(JournalFiles().map(path, whole=True)).digest()
        end = time.perf_counter()
        figures["verify"].append(total / (middle - start) / 1e6)
        figures["blake3"].append(total / (end - middle) / 1e6)
    share = statistics.median(
        v / b for v, b in zip(figures["verify"], figures["blake3"], strict=True)
    )
    report(
        "full verification",
        statistics.median(figures["verify"]),
        "MB/s",
        f"{share:.2f} x BLAKE3 alone, {total:,} bytes",
    )
    report("BLAKE3 alone over the same files", statistics.median(figures["blake3"]), "MB/s")


def bench_query(place, events):
    with JournalReader(place) as reader:
        reader.query(Query(entity="customer-7"))
        found = []
        for number in range(20):
            start = time.perf_counter()
            count = len(reader.query(Query(entity=f"customer-{number * 31 % 5000}")))
            found.append(time.perf_counter() - start)
        report(
            f"query by entity in {events / 1e6:g} M events",
            statistics.median(found) * 1000,
            "ms",
            f"about {count} events found",
        )
        view = reader.view()
        ids = [view.get(n).id for n in range(0, events, events // 20)]
        start = time.perf_counter()
        assert len(view.find(ids)) == len(ids)
        report("look up an event by id", (time.perf_counter() - start) / len(ids) * 1e6, "us")


def bench_given_ids(place):
    """What idempotence costs when the log is long: ids given by the producer."""
    ids = RandomEventIds()
    with JournalWriter(place, JournalSettings(durability=Durability.GROUP)) as writer:
        base = batch()

        def given():
            raw = pa.py_buffer(ids.ids(SIZE, time.time_ns() // 1000).tobytes())
            column = pa.Array.from_buffers(pa.binary(16), SIZE, [None, raw])
            writer.append(base.append_column("id", column))

        given()
        figure = statistics.median(timed(given, 10) for _ in range(5))
    report("durable append with producer's ids, on the log above", SIZE / figure, "events/s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--dir", type=Path, default=None)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.dir))
    try:
        bench_append(root, 5 if options.quick else 15, 40 if options.quick else 100)
        bench_threads(root, 2 if options.quick else 5, 40 if options.quick else 150)
        sizes = [100_000] if options.quick else [1_000_000, 10_000_000]
        place = bench_open(root, sizes)
        bench_verify(place, 2 if options.quick else 5)
        bench_query(place, sizes[-1])
        bench_given_ids(place)
    finally:
        shutil.rmtree(root)
    if options.markdown:
        for what, value, note in ROWS:
            print(f"| {what} | {value} | {note} |", file=sys.stderr)


if __name__ == "__main__":
    main()
