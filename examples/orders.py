"""Orders into totals by customer: a real pipeline on Spark that continues where it stopped.

Run it again and again: every run reads the next orders, exactly once.

    python examples/orders.py [directory] [rows]
"""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast as hf

HOME = Path(sys.argv[1] if len(sys.argv) > 1 else ".holdfast-run") / "orders"
ROWS = int(sys.argv[2]) if len(sys.argv) > 2 else 200_000
EPOCHS = 4

pipe = hf.Pipeline(
    "orders",
    store=HOME / "checkpoints",
    master="local[2]",
    spark_config={"spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"},
)
generator = hf.sources.Generator(
    {
        "customer": "concat('customer-', pmod(xxhash64(id, seed), 1000))",
        "amount": "cast(pmod(xxhash64(seed, id), 10000) / 100 AS decimal(10, 2))",
    },
    rows_per_epoch=ROWS // EPOCHS,
    seed=7,
)
orders = pipe.source("orders", generator)
totals = (
    orders.where("amount > 1")
    .group_by("customer")
    .agg(total=hf.sum("amount"), orders=hf.count(), largest=hf.max("amount"), name="totals")
)
pipe.sink("totals_out", totals, hf.sinks.Parquet(HOME / "out"))


def main() -> None:
    """Run four epochs, show the largest customers, and check them against Spark's batch answer."""
    summary = pipe.run(
        epochs=EPOCHS,
        on_epoch=lambda r: print(f"epoch {r.epoch}: {r.rows} orders, {r.changes} changes"),
    )
    if summary.resumed_from is not None:
        print(f"resumed after epoch {summary.resumed_from}")
    spark = pipe.session()
    view = pipe.view("totals").to_spark()
    view.orderBy("total", ascending=False).show(5, truncate=False)

    read = (int(summary.last_epoch or 0) + 1) * (ROWS // EPOCHS)
    batch = (
        generator.rows_between(spark, 0, read)
        .where("amount > 1")
        .groupBy("customer")
        .agg({"amount": "sum", "*": "count"})
    )
    assert (
        view.select("customer", "total", "orders")
        .exceptAll(batch.select("customer", "sum(amount)", "count(1)"))
        .isEmpty()
    ), "the view differs from Spark's batch answer"
    current = hf.read_changelog(spark, HOME / "out").select("customer", "total", "orders")
    assert current.exceptAll(view.select("customer", "total", "orders")).isEmpty()
    print(f"{read} orders so far, each counted once; checkpoints in {HOME / 'checkpoints'}")


if __name__ == "__main__":
    main()
