"""What the benchmarks next to Structured Streaming share: the session, files, and both stopwatches."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.checkpoint import Store
from holdfast.spark.session import open_session

PARTITIONS = 2


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Options that all of them take."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="smaller and shorter")
    parser.add_argument("--dir", default=".bench", help="where files and stores go")
    parser.add_argument(
        "--jvm", choices=["holdfast", "plain"], default="holdfast",
        help="options of the JVM: those that Holdfast sets in its own sessions, or none",
    )  # fmt: skip
    return parser


def session(args: argparse.Namespace, memory: str = "4g") -> Any:
    """One session for both sides."""
    config = {"spark.driver.memory": memory, "spark.log.level": "ERROR"}
    if args.jvm == "plain":
        config["spark.driver.extraJavaOptions"] = "-Xshare:auto"  # what a JVM does anyway
    spark = open_session(app="bench", master=f"local[{PARTITIONS}]", config=config)
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    for name, value in {
        "streaming.stateStore.providerClass": provider,
        "streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "streaming.noDataMicroBatches.enabled": "false",
        "shuffle.partitions": str(PARTITIONS),
    }.items():
        spark.conf.set(f"spark.sql.{name}", value)
    return spark


def put(directory: Path, number: int, table: pa.Table) -> Path:
    """One more file of a source, all at once."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f".tmp-{number}"
    pq.write_table(table, temporary)
    return temporary.rename(directory / f"part-{number:06d}.parquet")


class Epochs:
    """Runs a pipeline and keeps what its epochs report."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self.reports: list[Any] = []
        self.first_commit_ms = 0.0
        self.whole_ms = 0.0

    def run(self, epochs: int) -> list[float]:
        """Milliseconds of every epoch but the first, which pays for starting again.

        `whole_ms`: the epochs and the last commit, without starting and stopping the run.
        `first_commit_ms`: from the call to the first durable checkpoint.
        """
        times: list[float] = []
        commits: list[float] = []
        began = last = time.perf_counter()

        def seen(report: Any) -> None:
            nonlocal last
            now = time.perf_counter()
            times.append((now - last) * 1e3)
            last = now
            self.reports.append(report)

        def commit(store: Store, draft: Any) -> Any:
            done = plain(store, draft)
            commits.append((time.perf_counter() - began) * 1e3)
            return done

        plain, Store.commit = Store.commit, commit  # type: ignore[method-assign, assignment]
        try:
            self.pipe.run(epochs=epochs, on_epoch=seen)
        finally:
            Store.commit = plain  # type: ignore[method-assign]
        self.first_commit_ms = commits[0]
        first_epoch = self.reports[-len(times)].total_ms
        self.whole_ms = first_epoch + commits[-1] - times[0]
        return times[1:]

    def phases(self, last: int) -> dict[str, float]:
        """Medians of what the last epochs spent their time on."""
        reports = self.reports[-last:]
        names = dict.fromkeys(name for report in reports for name in report.phases_ms)
        return {
            name: statistics.median(report.phases_ms.get(name, 0.0) for report in reports)
            for name in names
        }


def streamed(writer: Any, checkpoint: Path) -> list[float]:
    """Run a query of Structured Streaming until its files are used up: milliseconds of each batch."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return [p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]]


def jobs(spark: Any) -> int:
    """All jobs that the session's scheduler has numbered so far."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())
