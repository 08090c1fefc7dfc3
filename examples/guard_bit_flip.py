"""One changed digit in a Structured Streaming checkpoint: Spark alone, and Spark with the guard.

    python examples/guard_bit_flip.py

A query removes duplicates. It is stopped, one digit of the watermark in its newest `offsets/N` is
changed, and new input arrives. Spark alone restarts without complaint and drops every row of it.
With the guard the damage is found before the start, the savepoint is restored, and no row is lost.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import holdfast as hf
from holdfast.errors import CorruptionError

ROWS = 200


def write_input(folder: Path, number: int) -> None:
    """One file of events; each minute has its own."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"id": number * ROWS + row, "at": f"2024-01-01 00:{number:02}:{row % 60:02}"})
        for row in range(ROWS)
    ]
    (folder / f"events-{number:03}.json").write_text("\n".join(lines) + "\n")


def run(spark: Any, folder: Path, checkpoint: Path) -> int:
    """Start the query, let it take all input, stop it; returns how many rows it gave out."""
    given: dict[int, int] = {}

    def count(frame: Any, batch: int) -> None:
        given[batch] = frame.count()

    query = (
        spark.readStream.schema("id long, at timestamp")
        .json(str(folder))
        .withWatermark("at", "10 minutes")
        .dropDuplicates(["id", "at"])
        .writeStream.option("checkpointLocation", str(checkpoint))
        .foreachBatch(count)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sum(given.values())


def change_one_digit(checkpoint: Path) -> str:
    """The first digit of the newest batch's watermark becomes a 9."""
    newest = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    text = newest.read_text()
    at = text.index('"batchWatermarkMs":') + len('"batchWatermarkMs":')
    newest.write_text(f"{text[:at]}9{text[at + 1 :]}")
    return f"offsets/{newest.name}"


def main(root: Path) -> None:
    """Both sides, on copies of the same checkpoint."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    folder, guarded, alone, store = (root / name for name in ("in", "guarded", "alone", "store"))
    for number in range(3):
        write_input(folder, number)
    first = run(spark, folder, guarded)
    print(f"first run: {first} rows")
    hf.guard.save(guarded, store, "before")
    shutil.copytree(guarded, alone)
    for checkpoint in (alone, guarded):
        print(f"changed one digit of {change_one_digit(checkpoint)} in {checkpoint.name}/")
    write_input(folder, 3)

    lost = ROWS - run(spark, folder, alone)
    print(f"Spark alone:    restarts without complaint, {lost} of {ROWS} new rows are lost")

    try:
        hf.guard.protect(spark, guarded, store)
    except CorruptionError as error:
        print(f"with the guard: refused, {error.facts['path']} is damaged")
    else:
        raise AssertionError("the guard has not found the changed digit")
    hf.guard.restore(guarded, store, "before")
    hf.guard.protect(spark, guarded, store)
    kept = run(spark, folder, guarded)
    print(f"with the guard: restored the savepoint, {ROWS - kept} of {ROWS} new rows are lost")
    spark.stop()
    assert (first, lost, kept) == (3 * ROWS, ROWS, ROWS)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
