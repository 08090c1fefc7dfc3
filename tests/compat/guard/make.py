"""Make the golden checkpoints again: small queries of a real Spark, one for each state layout.

    PYTHONPATH=src:. python tests/compat/guard/make.py

Writes one zip for each query beside this file, and `expected.json`: Spark's own answer about the
rows of state, read by its `statestore` source.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path

from tests.helpers.guard_queries import (
    LAYOUTS,
    Collected,
    run_to_end,
    session,
    use_layout,
    write_input,
)

HERE = Path(__file__).resolve().parent
os.environ["PYSPARK_PYTHON"] = sys.executable


PLACE = Path("/tmp/guard-golden")
GOLDEN = [
    ("aggregation", "hdfs"),
    ("aggregation", "rocksdb1"),
    ("aggregation", "rocksdb1-changelog"),
    ("aggregation", "rocksdb2"),
    ("aggregation", "rocksdb2-changelog"),
    ("join", "hdfs"),
    ("join", "rocksdb2-changelog"),
    ("custom_state", "rocksdb2-changelog"),
]
SIDES = {
    "join": [
        "left-keyToNumValues", "left-keyWithIndexToValue",
        "right-keyToNumValues", "right-keyWithIndexToValue",
    ],
}  # fmt: skip


def main() -> None:
    """Run every query and pack what it left."""
    shutil.rmtree(PLACE, ignore_errors=True)
    write_input(PLACE / "in", 4, rows=6)
    spark = session(str(PLACE / "warehouse"))
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    expected = {}
    for query, layout in GOLDEN:
        use_layout(spark, layout, retain=2)
        location = PLACE / f"{query}-{layout}"
        run_to_end(spark, query, PLACE / "in", location, Collected())
        _pack(location)
        expected[location.name] = {
            "layout": LAYOUTS[layout][3],
            "keys": _keys(spark, query, location),
        }
        print(location.name, expected[location.name])
    (HERE / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    spark.stop()


def _keys(spark, query: str, location: Path) -> dict[str, int] | None:
    if query == "custom_state":
        return None
    found = {}
    for store in SIDES.get(query, ["default"]):
        rows = spark.read.format("statestore").option("storeName", store).load(str(location))
        found[store] = rows.count()
    return found


def _pack(location: Path) -> None:
    with zipfile.ZipFile(HERE / f"{location.name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(location.rglob("*")):
            if path.is_file():
                info = zipfile.ZipInfo(path.relative_to(location).as_posix())
                archive.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
