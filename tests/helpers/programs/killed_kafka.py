"""A pipeline from Kafka to Kafka in a process of its own, to be killed: join and aggregate."""

from __future__ import annotations

import os
import sys

import holdfast as hf

ROWS_MAX = int(os.environ.get("HOLDFAST_KAFKA_ROWS_MAX", "400"))


def main() -> None:
    home, servers, jars, master, *more = sys.argv[1:]
    names = dict(pair.split("=", 1) for pair in more)
    pipe = hf.Pipeline(
        "p", store=f"{home}/cp", partitions=2, master=master,
        spark_config={
            "spark.jars": jars, "spark.log.level": "OFF", "spark.driver.memory": "1g",
            "spark.executor.memory": "1g",
        },
    )  # fmt: skip
    orders = pipe.source(
        "orders",
        hf.sources.Kafka(
            servers, pattern=names["orders"], format="json",
            schema="id long, customer int, amount long", rows_max=ROWS_MAX,
        ),
    )  # fmt: skip
    customers = pipe.source(
        "customers",
        hf.sources.Kafka(
            servers, names["customers"], format="json", schema="customer int, land string"
        ),
    )
    joined = orders.join(customers, on="customer", name="joined")
    totals = joined.group_by("land").agg(n=hf.count(), s=hf.sum("amount"), name="totals")
    pipe.sink("rows_out", joined, hf.sinks.Kafka(servers, names["rows"], key="id"))
    pipe.sink(
        "totals_out", totals, hf.sinks.Kafka(servers, names["totals"], mode="upsert", key="land")
    )
    pipe.sink("changes_out", totals, hf.sinks.Kafka(servers, names["changes"]))
    print("ready", flush=True)
    pipe.run(on_epoch=lambda report: print(f"epoch {report.epoch}", flush=True))
    print("done", flush=True)


if __name__ == "__main__":
    main()
