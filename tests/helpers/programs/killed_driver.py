"""A pipeline in a process of its own, to be killed: journal or generator into Parquet."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import holdfast as hf
from holdfast.runtime import compaction_work, run_lists, task_counts

SOAK = os.environ.get("HOLDFAST_SOAK") == "1"  # nothing of the tests is loaded here
ROWS, ROWS_PER_EPOCH = (100_000, 250) if SOAK else (8_000, 1_000)
# An epoch takes whole appends: so many, that the kills do not run out of epochs.
EVENTS, EVENTS_MAX = 40_000, 100


def main() -> None:
    # Epochs of a few rows get one task, larger ones all partitions; tasks compact, documents have
    # lists. Not at import: tests take numbers from here.
    task_counts.ROWS_PER_TASK = task_counts.ROWS_PER_TASK_MAX = 50
    task_counts.ROWS_PER_RUN = 0
    compaction_work.THREAD_RUNS_MAX, run_lists.INLINE_BYTES_MAX = 0, 3_000
    home, kind, partitions, master = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    pipe = hf.Pipeline(
        "p", store=home / "cp", partitions=partitions, master=master,
        spark_config={
            "spark.driver.memory": "1g", "spark.speculation": sys.argv[5] if len(sys.argv) > 5 else "false",
            "spark.speculation.multiplier": "1.1", "spark.speculation.quantile": "0.5",
            "spark.log.level": "OFF",
        },
    )  # fmt: skip
    if kind == "journal":
        rows = pipe.source(
            "in",
            hf.sources.Journal(home / "journal", payload="k long, x long", events_max=EVENTS_MAX),
        ).select("k", "x", "sequence AS id")
    else:
        rows = pipe.source(
            "in",
            hf.sources.Generator(
                {"k": "pmod(xxhash64(id, seed), 50)", "x": "id % 7", "id": "id"},
                rows=ROWS,
                rows_per_epoch=ROWS_PER_EPOCH,
            ),
        )
    totals = rows.group_by("k").agg(
        n=hf.count(), s=hf.sum("x"), d=hf.count_distinct("x"), name="totals"
    )
    pipe.sink("totals_out", totals, hf.sinks.Parquet(str(home / "totals")))
    pipe.sink("rows_out", rows, hf.sinks.Parquet(str(home / "rows")))
    print("ready", flush=True)
    pipe.run(on_epoch=lambda report: print(f"epoch {report.epoch}", flush=True))
    print("done", flush=True)


if __name__ == "__main__":
    main()
