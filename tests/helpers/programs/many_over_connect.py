"""Many partitions over Spark Connect, compacted by tasks, lists in documents; prints what came out.

A program of its own: one process has either a classic session or one of Connect.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.runtime import compaction_work, compactor, run_lists, task_counts
from holdfast.spark.background import BackgroundJob
from holdfast.state import CompactionPolicy


def main(folder: Path) -> None:
    """Generated rows, in epochs of one task and of all."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    compaction_work.THREAD_RUNS_MAX = 0
    run_lists.INLINE_BYTES_MAX = 10_000
    task_counts.ROWS_PER_TASK = task_counts.ROWS_PER_TASK_MAX = 10
    task_counts.ROWS_PER_RUN = 0
    compactor.CompactionPolicy = lambda: CompactionPolicy(fanout=2, runs_max=4)
    jobs, begin = [], BackgroundJob.__init__
    BackgroundJob.__init__ = lambda *args, **more: (jobs.append(1), begin(*args, **more))[1]
    tasks: list[int] = []
    for rows, rows_per_epoch in ((303, 101), (305, 1), (600, 150)):
        pipe = hf.Pipeline("p", store=folder / "cp", spark=spark, partitions=16)
        source = hf.sources.Generator(
            {"k": "id % 37", "x": "id"}, rows=rows, rows_per_epoch=rows_per_epoch
        )
        pipe.source("in", source).group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="t")
        pipe.run(on_epoch=lambda report: tasks.append(report.tasks["t"]))
    found = sorted((r["k"], r["n"], r["s"]) for r in pipe.view("t").to_spark(spark).collect())
    print(json.dumps({"rows": found, "tasks": sorted({*tasks}), "jobs": len(jobs)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
