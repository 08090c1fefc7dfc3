"""Nexmark on Holdfast: people, auctions and bids, and the queries over them, kept up to date.

    python examples/nexmark.py q5 [directory] [events]

Each query is declared twice: as a pipeline over streams, and as plain Spark over all rows at once.
The program runs the pipeline epoch by epoch into a Parquet changelog, adds the changelog up, and
compares it with Spark's answer. Run it again: it continues where it stopped.

Of 50 events one is a person, three are auctions and 46 are bids; an event happens every 10 ms. Two
differences from the original: q5 and q7 give one row where several tie (the smallest), and q12
counts by event time, since what a clock on the wall says cannot be computed again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import holdfast as hf

_TIME = "timestamp_micros(1767225600000000 + (id div {of}) * 500000 + (id % {of}) * {step})"
PEOPLE = {
    "id": "1000 + id",
    "name": "concat('person-', pmod(xxhash64(id, seed), 997))",
    "city": "element_at(array('Portland', 'Boise', 'Fresno', 'Phoenix', 'Kent'),"
    " 1 + int(pmod(xxhash64(seed, id), 5)))",
    "state": "element_at(array('OR', 'ID', 'CA', 'AZ', 'WA'), 1 + int(pmod(xxhash64(id), 5)))",
    "at": _TIME.format(of=1, step=0),
}
AUCTIONS = {
    "id": "1000 + id",
    "seller": "1000 + pmod(xxhash64(id, seed), 1 + id div 3)",
    "category": "10 + pmod(xxhash64(seed, id), 5)",
    "reserve": "100 + pmod(xxhash64(id), 1000)",
    "expires": _TIME.format(of=3, step=10_000)
    + " + make_interval(0, 0, 0, 0, 0, 0, 2 + pmod(xxhash64(id, 7L), 20))",
    "at": _TIME.format(of=3, step=10_000),
}
BIDS = {
    "auction": "1000 + greatest(0, 3 * (id div 46) - pmod(xxhash64(id, seed), 30))",
    "bidder": "1000 + pmod(xxhash64(seed, id), 1 + id div 46)",
    "price": "100 + pmod(xxhash64(id), 10000)",
    "at": _TIME.format(of=46, step=10_000),
}


@dataclass(frozen=True)
class World:
    """The three streams, or the three tables."""

    people: Any
    auctions: Any
    bids: Any


@dataclass(frozen=True)
class Query:
    """One query: over streams, and over tables."""

    stream: Callable[[World], Any]
    batch: Callable[[World], Any]


def _q3(w: World) -> Any:
    people = w.people.where("state IN ('OR', 'ID', 'CA')").select("id AS seller", "name", "state")
    chosen = w.auctions.where("category = 10").select("id", "seller")
    return chosen.join(people, "seller", name="local_items")


def _q3_batch(w: World) -> Any:
    people = w.people.where("state IN ('OR', 'ID', 'CA')").selectExpr("id seller", "name", "state")
    return w.auctions.where("category = 10").select("id", "seller").join(people, "seller")


def _bids_in_time(w: World, name: str) -> Any:
    """Bids that came while their auction was open."""
    auctions = w.auctions.select("id AS auction", "category", "reserve", "expires", "at AS opened")
    return auctions.join(w.bids, "auction", name=name, condition="at BETWEEN opened AND expires")


def _bids_in_time_batch(w: World) -> Any:
    auctions = w.auctions.selectExpr("id auction", "category", "reserve", "expires", "at opened")
    return auctions.join(w.bids, "auction").where("at BETWEEN opened AND expires")


def _q4(w: World) -> Any:
    final = (
        _bids_in_time(w, "in_time")
        .group_by("auction", "category")
        .agg(final=hf.max("price"), name="final_prices")
    )
    return final.group_by("category").agg(price=hf.avg("final"), name="category_prices")


def _q4_batch(w: World) -> Any:
    final = _bids_in_time_batch(w).groupBy("auction", "category").agg({"price": "max"})
    return final.groupBy("category").agg({"max(price)": "avg"}).toDF("category", "price")


def _q5(w: World) -> Any:
    counts = w.bids.group_by("auction", hf.sliding("at", size="10 seconds", slide="2 seconds")).agg(
        n=hf.count(), name="bid_counts"
    )
    return counts.top_k(1, per=["window_start", "window_end"], order_by="n desc", name="hot_items")


def _q5_batch(w: World) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    exploded = w.bids.select("*", F.window("at", "10 seconds", "2 seconds").alias("w"))
    counts = (
        exploded.groupBy("auction", "w.start", "w.end").count()
        .toDF("auction", "window_start", "window_end", "n")
    )  # fmt: skip
    order = Window.partitionBy("window_start", "window_end").orderBy(F.desc("n"), "auction")
    return counts.withColumn("r", F.row_number().over(order)).where("r = 1").drop("r")


def _q7(w: World) -> Any:
    highest = w.bids.group_by(hf.tumbling("at", size="10 seconds")).agg(
        price=hf.max("price"), name="highest"
    )
    inside = "at >= window_start AND at < window_end"
    return highest.join(w.bids, "price", name="highest_bids", condition=inside)


def _q7_batch(w: World) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    highest = w.bids.groupBy(F.window("at", "10 seconds").alias("w")).agg({"price": "max"})
    highest = highest.selectExpr("w.start window_start", "w.end window_end", "`max(price)` price")
    return highest.join(w.bids, "price").where("at >= window_start AND at < window_end")


def _q8(w: World) -> Any:
    every = hf.tumbling("at", size="10 seconds")
    people = w.people.group_by("id", "name", every).agg(people=hf.count(), name="newcomers")
    sellers = w.auctions.group_by("seller", every).agg(auctions=hf.count(), name="sellers")
    on = {"id": "seller", "window_start": "window_start", "window_end": "window_end"}
    joined = people.select("id", "name", "window_start", "window_end").join(
        sellers.select("seller", "window_start", "window_end"), on, how="semi", name="new_sellers"
    )
    return joined.select("id", "name", "window_start")


def _q8_batch(w: World) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    window = F.window("at", "10 seconds").start.alias("window_start")
    people = w.people.select("id", "name", window).distinct()
    sellers = w.auctions.select(F.col("seller").alias("id"), window).distinct()
    return people.join(sellers, ["id", "window_start"], "left_semi").select(
        "id", "name", "window_start"
    )


def _q9(w: World) -> Any:
    return _bids_in_time(w, "in_time").top_k(
        1, per="auction", order_by=["price desc", "at"], name="winning"
    )


def _q9_batch(w: World) -> Any:
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    bids = _bids_in_time_batch(w)
    rest = [name for name in bids.columns if name not in ("auction", "price", "at")]
    order = Window.partitionBy("auction").orderBy(F.desc("price"), "at", *rest)
    return bids.withColumn("r", F.row_number().over(order)).where("r = 1").drop("r")


def _q11(w: World) -> Any:
    return w.bids.group_by("bidder", hf.session_window("at", gap="2 seconds")).agg(
        bids=hf.count(), name="sessions"
    )


def _q11_batch(w: World) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    grouped = w.bids.groupBy("bidder", F.session_window("at", "2 seconds").alias("w")).count()
    return grouped.selectExpr("bidder", "w.start window_start", "w.end window_end", "count bids")


def _q12(w: World) -> Any:
    return w.bids.group_by("bidder", hf.tumbling("at", size="10 seconds", emit="close")).agg(
        bids=hf.count(), name="bids_per_bidder"
    )


def _q12_batch(w: World) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    newest = w.bids.agg(F.max("at").alias("newest"))
    grouped = w.bids.groupBy("bidder", F.window("at", "10 seconds").alias("w")).count()
    closed = grouped.crossJoin(newest).where("w.end <= newest")
    return closed.selectExpr("bidder", "w.start window_start", "w.end window_end", "count bids")


_EURO = ("auction", "bidder", "cast(price * 0.908 AS decimal(20, 3)) AS price", "at")
QUERIES = {
    "q0": Query(lambda w: w.bids, lambda w: w.bids),
    "q1": Query(lambda w: w.bids.select(*_EURO), lambda w: w.bids.selectExpr(*_EURO)),
    "q2": Query(
        lambda w: w.bids.where("auction % 123 = 0").select("auction", "price"),
        lambda w: w.bids.where("auction % 123 = 0").select("auction", "price"),
    ),
    "q3": Query(_q3, _q3_batch),
    "q4": Query(_q4, _q4_batch),
    "q5": Query(_q5, _q5_batch),
    "q7": Query(_q7, _q7_batch),
    "q8": Query(_q8, _q8_batch),
    "q9": Query(_q9, _q9_batch),
    "q11": Query(_q11, _q11_batch),
    "q12": Query(_q12, _q12_batch),
}


@dataclass
class Nexmark:
    """One query as a pipeline, with what it takes to check it."""

    query: str
    home: Path
    events: int = 50_000
    events_per_epoch: int = 10_000
    spark: Any = None

    def __post_init__(self) -> None:
        """Declare the pipeline. Sources that a query does not use are left out."""
        self.pipe = hf.Pipeline(
            self.query, store=self.home / "checkpoints", spark=self.spark, partitions=2,
            master=None if self.spark is not None else "local[2]",
        )  # fmt: skip
        uses = _uses(self.query)
        streams = {
            name: self.pipe.source(name, self.generator(name), event_time="at", future=None)
            if name in uses
            else None
            for name in ("people", "auctions", "bids")
        }
        result = QUERIES[self.query].stream(World(**streams))
        self.pipe.sink("out", result, hf.sinks.Parquet(str(self.home / "out")))

    def generator(self, name: str) -> hf.sources.Generator:
        """The rows of one kind."""
        columns, share = {
            "people": (PEOPLE, 1), "auctions": (AUCTIONS, 3), "bids": (BIDS, 46),
        }[name]  # fmt: skip
        return hf.sources.Generator(
            columns, rows=self.events * share // 50, seed=42,
            rows_per_epoch=max(1, self.events_per_epoch * share // 50),
        )  # fmt: skip

    def answer(self) -> Any:
        """What plain Spark says of all rows at once."""
        spark = self.pipe.session()
        tables = {}
        for name in ("people", "auctions", "bids"):
            made = self.generator(name)
            tables[name] = made.rows_between(spark, 0, made.rows or 0)
        return QUERIES[self.query].batch(World(**tables))

    def differences(self) -> tuple[int, int, int]:
        """Rows of the answer; rows that only the pipeline has; rows that only Spark has."""
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        spark = self.pipe.session()
        wanted = self.answer()
        rows = hf.read_changelog(spark, self.home / "out")
        kinds = {f.name: f.dataType for f in wanted.schema.fields}
        got = rows.select(*(F.col(name).cast(kind) for name, kind in kinds.items())).cache()
        wanted = wanted.cache()
        found = wanted.count(), got.exceptAll(wanted).count(), wanted.exceptAll(got).count()
        got.unpersist()
        wanted.unpersist()
        return found


def _uses(query: str) -> set[str]:
    everything = {"q3": {"people", "auctions"}, "q8": {"people", "auctions"}}
    both = {"q4", "q9"}
    return everything.get(query, {"auctions", "bids"} if query in both else {"bids"})


def main() -> None:
    """Run one query, or all of them, and compare."""
    chosen = sys.argv[1] if len(sys.argv) > 1 else "all"
    home = Path(sys.argv[2] if len(sys.argv) > 2 else ".holdfast-run") / "nexmark"
    events = int(sys.argv[3]) if len(sys.argv) > 3 else 50_000
    names = [*QUERIES] if chosen == "all" else [chosen]
    for name in names:
        if name not in QUERIES:
            raise SystemExit(f"no such query: {name}; one of {', '.join(QUERIES)}")
        query = Nexmark(name, home / name, events)
        summary = query.pipe.run()
        rows, only_ours, only_spark = query.differences()
        print(
            f"{name}: {summary.epochs} epochs, {summary.rows} rows in, {rows} rows out, "
            f"{only_ours + only_spark} differ from Spark's answer"
        )
        if only_ours or only_spark:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
