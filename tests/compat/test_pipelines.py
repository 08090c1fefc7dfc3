"""Stores that pipelines of each format left behind: they open, verify, continue and upgrade.

`tests/compat/pipelines/v1` was made by the software of format 1 with the program below over the
three files next to it; it cannot be made again. `v2` is what the same program writes today.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.cli.main import main
from tests.helpers.paths import TESTS
from tests.helpers.pipeline_world import published

GOLDEN = TESTS / "compat" / "pipelines"
SCHEMA = "customer string, amount long, w long"


def program(folder: Path, spark) -> hf.Pipeline:
    pipe = hf.Pipeline("shop", store=folder / "cp", partitions=2, spark=spark)
    files = hf.sources.Files(
        str(folder / "in"), schema=SCHEMA, format="parquet", weight="w", files_max=1
    )
    orders = pipe.source("orders", files)
    totals = orders.group_by("customer").agg(
        total=hf.sum("amount"), n=hf.count(), low=hf.min("amount"), name="totals"
    )
    customers = orders.select("customer").distinct(name="customers")
    orders.join(customers, on="customer", how="inner", name="joined")
    pipe.sink("out", totals, hf.sinks.Parquet(str(folder / "out")))
    return pipe


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("upgraded", [False, True])
def test_a_stored_pipeline_continues_with_the_right_rows(spark, tmp_path, version, upgraded):
    """State, positions and outputs of an older format are continued, not begun again."""
    folder = tmp_path / "shop"
    shutil.copytree(GOLDEN / version, folder)
    store = str(folder / "cp" / "shop")
    assert main(["verify", "--deep", store]) == 0
    if upgraded:
        assert main(["upgrade", store]) == 0
    more = {"customer": ["eve", "bob"], "amount": [4, 7], "w": [1, -1]}
    pq.write_table(pa.table(more), folder / "in" / "d.parquet")
    pipe = program(folder, spark)
    summary = pipe.run()
    assert (summary.epochs, summary.rows, summary.resumed_from) == (1, 2, 2)
    spark.read.schema(SCHEMA).parquet(str(folder / "in")).createOrReplaceTempView("net")
    batch = spark.sql(
        "SELECT customer, sum(amount * w) AS total, sum(w) AS n, min(amount) AS low FROM ("
        "SELECT customer, amount, sum(w) AS w FROM net GROUP BY customer, amount HAVING sum(w) > 0)"
        " GROUP BY customer"
    )
    wanted = sorted(tuple(row) for row in batch.collect())
    view = pipe.view("totals").to_arrow().select(["customer", "total", "n", "low"])
    assert sorted(tuple(row.values()) for row in view.to_pylist()) == wanted
    columns = ["customer", "total", "n", "low"]
    assert sum(published(spark, folder / "out", columns).values()) == len(wanted)
    assert main(["verify", "--deep", store]) == 0
