"""Outputs that are rebuilt, kept or taken over, while sources forget and sinks change."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError


class World:
    """Files with one row each, and pipelines over them."""

    def __init__(self, home: Path, spark) -> None:
        self.home, self.spark, self.files = home, spark, 0

    def feed(self, *values: int) -> None:
        (self.home / "in").mkdir(exist_ok=True)
        for value in values:
            hidden = self.home / "in" / f".{self.files}"
            pq.write_table(pa.table({"k": [self.files], "x": [value]}), hidden)
            hidden.rename(self.home / "in" / f"{self.files:04d}.parquet")
            self.files += 1

    def begin(self, retain=3, **options):
        """A pipeline and its source."""
        settings = hf.Settings(epochs_max=1, retain=retain)
        pipe = hf.Pipeline(
            "p", store=self.home / "cp", spark=self.spark, partitions=1, settings=settings
        )
        files = hf.sources.Files(
            str(self.home / "in"), schema="k long, x long", files_max=1, min_age_ms=0, **options
        )
        return pipe, pipe.source("s", files)

    def pipe(self, sink="out", where="true", mode="changelog", retain=3, **options) -> hf.Pipeline:
        pipe, source = self.begin(retain, **options)
        pipe.sink(sink, source.where(where), hf.sinks.Parquet(str(self.home / "out"), mode=mode))
        return pipe

    def rows(self, name="out") -> Counter:
        files = [
            str(p) for p in (self.home / name).glob("**/*.parquet") if "_staging" not in str(p)
        ]
        if not files:
            return Counter()
        rows = duckdb.read_parquet(files, hive_partitioning=False)
        return Counter(rows.project("k, x").fetchall())

    def fed(self, *numbers: int, value: int = 1) -> Counter:
        return Counter((number, value) for number in numbers)


@pytest.fixture
def world(spark, tmp_path) -> World:
    return World(tmp_path, spark)


@pytest.mark.parametrize("mode", ["changelog", "upsert"])
def test_a_renamed_sink_keeps_its_output_or_rebuilds_it_or_begins_empty(world, mode) -> None:
    """Kept rows are not filled in once more, and an output that begins empty gets no past."""
    world.feed(1, 1)
    world.pipe("old", mode=mode).run()
    with pytest.raises(HoldfastError) as caught:
        world.pipe("new", mode=mode).run(allow_changes=True)
    assert caught.value.kind == "output_owned"
    world.feed(1)
    world.pipe("new", mode=mode).run(allow_changes=True, outputs={"new": "keep"})
    assert world.rows() == world.fed(0, 1, 2)
    world.pipe("newer", mode=mode).run(allow_changes=True, outputs={"newer": "adopt"})
    assert world.rows() == world.fed(0, 1, 2)
    world.feed(1)
    world.pipe("new", mode=mode).run(allow_changes=True, outputs={"new": "empty"})
    assert world.rows() == world.fed(3)


def test_what_a_rebuild_began_with_survives_a_wish_to_keep(world) -> None:
    """The first epoch of a rebuilt output holds the past: going back behind it rebuilds."""
    world.feed(1, 1, 1, 1)
    world.pipe(retain=20).run()
    shutil.rmtree(world.home / "out")
    world.pipe(retain=20).run()
    world.pipe(retain=20).run(outputs={"out": "keep"})
    world.pipe(retain=20).run(from_checkpoint=2, epochs=0)
    assert world.rows() == world.fed(0, 1, 2)


def test_sources_forget_after_a_fill_never_before_it(world) -> None:
    """A source that deletes from now on still gives its past to the output that needs it."""
    world.feed(1, 1, 1, 1, 1, 1)
    world.pipe().run()
    shutil.rmtree(world.home / "out")
    world.pipe(after_read="delete").run()
    assert world.rows() == world.fed(*range(6))
    assert len([*(world.home / "in").iterdir()]) < 6
    shutil.rmtree(world.home / "out")
    with pytest.raises(HoldfastError) as caught:
        world.pipe(after_read="delete").run()
    assert caught.value.kind == "output_not_rebuildable"


def test_an_older_output_is_found_when_no_retained_checkpoint_wrote_to_it(world) -> None:
    """A sink with few rows: the checkpoints that published its last ones are long gone."""
    world.feed(7)
    world.pipe(where="x = 7").run()
    shutil.copytree(world.home / "out", world.home / "copy")
    world.feed(7, 1, 1, 1, 1, 1, 1)
    world.pipe(where="x = 7").run()
    shutil.rmtree(world.home / "out")
    (world.home / "copy").rename(world.home / "out")
    world.feed(7)
    with pytest.raises(HoldfastError) as caught:
        world.pipe(where="x = 7").run()
    assert caught.value.kind == "output_behind"
    world.pipe(where="x = 7").run(outputs={"out": "adopt"})
    assert world.rows() == world.fed(0, 1, 8, value=7)


def test_a_new_part_without_history_is_refused_before_anything_is_touched(world) -> None:
    """Not after the other outputs have gone back; a new output may begin empty."""

    def pipe() -> hf.Pipeline:
        made, source = world.begin(20)
        made.sink("out", source.where("true"), hf.sinks.Parquet(str(world.home / "out")))
        made.sink("also", source, hf.sinks.Parquet(str(world.home / "also")))
        return made

    world.feed(1, 1, 1, 1)
    world.pipe(retain=20).run()
    (world.home / "in" / "0000.parquet").unlink()
    with pytest.raises(HoldfastError) as caught:
        pipe().run(allow_changes=True, from_checkpoint=2)
    assert caught.value.kind == "history_lost" and "empty" in caught.value.remedy
    assert world.rows() == world.fed(0, 1, 2, 3) and world.rows("also") == Counter()
    assert not (world.home / "also" / "_holdfast.json").exists()
    world.feed(1)
    pipe().run(allow_changes=True, outputs={"also": "empty"})
    assert world.rows() == world.fed(*range(5)) and world.rows("also") == world.fed(4)


def test_a_static_table_that_is_gone_is_named(world) -> None:
    """Typed and with its name; not a trace of the gateway to Java."""
    world.feed(1)
    pq.write_table(pa.table({"k": [0], "y": [1]}), world.home / "table.parquet")
    table = world.spark.read.parquet(str(world.home / "table.parquet"))
    pipe, source = world.begin()
    pipe.sink(
        "out", source.join_static(table, on="k", name="names"),
        hf.sinks.Parquet(str(world.home / "out")),
    )  # fmt: skip
    (world.home / "table.parquet").unlink()
    with pytest.raises(HoldfastError) as caught:
        pipe.run()
    assert caught.value.kind == "static_table_unreadable"
    assert caught.value.facts["table"] == "names"
    assert "table.parquet" in str(caught.value.facts["path"])


def test_going_back_with_another_table_is_refused_before_the_store_goes_back(world) -> None:
    """The refusal leaves the newest checkpoint in place."""

    def pipe(value: int) -> hf.Pipeline:
        table = world.spark.createDataFrame([(0, value)], "k long, y long")
        made, source = world.begin(20)
        joined = source.join_static(table, on="k", how="left", name="names")
        made.sink("out", joined, hf.sinks.Parquet(str(world.home / "out")))
        return made

    world.feed(1, 1, 1)
    pipe(1).run()
    with pytest.raises(HoldfastError) as caught:
        pipe(2).run(from_checkpoint=0)
    assert caught.value.kind == "static_table_changed"
    assert pipe(1).run().resumed_from == 2


def test_a_misspelled_sink_is_not_set_aside(world) -> None:
    """Nothing would have been moved, and nobody would have noticed."""
    world.feed(1)
    with pytest.raises(HoldfastError) as caught:
        world.pipe().run(set_aside=["typo"])
    assert caught.value.kind == "unknown_sink"


def test_a_python_function_on_the_columns_of_parquet_files_fits_into_memory(world) -> None:
    """Spark would reserve room for a whole batch, and a batch is a task's whole input here."""
    from pyspark.sql import functions as F

    world.feed(1, 1)
    pipe, source = world.begin()
    plus = F.udf(lambda x: x + 1, "long")
    more = source.transform(lambda df: df.withColumn("x", plus("x")))
    pipe.sink("out", more, hf.sinks.Parquet(str(world.home / "out")))
    pipe.run()
    assert world.rows() == world.fed(0, 1, value=2)


def test_a_session_that_was_stopped_is_named(tmp_path) -> None:
    """Not a trace of the gateway to Java."""

    class Context:
        @property
        def defaultParallelism(self):  # noqa: N802 - Spark's name
            raise RuntimeError("Cannot call methods on a stopped SparkContext.")

    class Session:
        sparkContext = Context()  # noqa: N815
        createDataFrame = None  # noqa: N815 - what tells a session from anything else

    with pytest.raises(HoldfastError) as caught:
        hf.Pipeline("p", store=tmp_path / "cp", spark=Session()).session()
    assert caught.value.kind == "session_stopped"
