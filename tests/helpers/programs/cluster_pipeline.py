"""A pipeline for `holdfast submit`: files on disk, a generator, a join, an aggregate; outputs in a bucket.

The environment says where: HOLDFAST_CLUSTER_STORE, HOLDFAST_CLUSTER_OUT, HOLDFAST_CLUSTER_HOME.
Nothing of the tests is loaded here.
"""

from __future__ import annotations

import os
from pathlib import Path

import holdfast as hf

HOME = Path(os.environ["HOLDFAST_CLUSTER_HOME"])
OUT = os.environ["HOLDFAST_CLUSTER_OUT"]
ROWS = int(os.environ.get("HOLDFAST_CLUSTER_ROWS", "1200"))
ROWS_PER_EPOCH = int(os.environ.get("HOLDFAST_CLUSTER_ROWS_PER_EPOCH", "100"))
PEOPLE = 50

pipe = hf.Pipeline(
    "p",
    store=os.environ["HOLDFAST_CLUSTER_STORE"],
    partitions=4,
    cache=HOME / "cache",
    settings=hf.Settings(retain=3),
)
orders = pipe.source(
    "orders",
    hf.sources.Generator(
        {"id": "id", "k": f"pmod(id * 7919, {PEOPLE})", "x": "id % 7"},
        rows=ROWS,
        rows_per_epoch=ROWS_PER_EPOCH,
    ),
)
people = pipe.source("people", hf.sources.Files(str(HOME / "people"), schema="k long, name string"))
named = orders.join(people, "k", "left", name="named")
totals = named.group_by("name").agg(
    n=hf.count(), s=hf.sum("x"), d=hf.count_distinct("x"), name="totals"
)
pipe.sink("named_out", named, hf.sinks.Parquet(f"{OUT}/named"))
pipe.sink("totals_out", totals, hf.sinks.Parquet(f"{OUT}/totals", mode="upsert"))

if __name__ == "__main__":
    pipe.run()
