"""Fast paths through private names of Spark: they work, and where one is missing nothing breaks."""

from __future__ import annotations

import logging

import pytest
from pyspark.sql import types as T

import holdfast as hf
from holdfast import guard
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.spark import classic
from holdfast.spark.canaries import try_fast_paths
from tests.helpers.pipeline_world import SCHEMA, published, write_rows

FILES = 3
ELSEWHERE = ("light listener", "checkpoint location", "python daemon")
NAMES = sorted(
    {name for path in classic.FAST_PATHS.values() for name in path.names if path.name not in ELSEWHERE}
)  # fmt: skip
ERRORS = set(classic.FAST_PATHS["error causes"].names)


@pytest.fixture(autouse=True)
def as_new(monkeypatch):
    """Every test begins with all fast paths on, and leaves them so."""
    monkeypatch.setattr(classic, "_off", {})
    monkeypatch.setattr(classic, "_compared", set())


@pytest.fixture(scope="module")
def canaries(spark):
    """All fast paths, tried once on this Spark."""
    return {canary.path: canary.reason for canary in try_fast_paths(spark)}


@pytest.mark.parametrize("path", classic.FAST_PATHS)
def test_a_fast_path_works_on_this_spark(canaries, path) -> None:
    """The private names are there and do what the public way does."""
    assert canaries[path] is None


def without(monkeypatch, *missing: str) -> None:
    """This Spark has no such private names."""
    plain = classic._reach

    def reach(owner, name):
        if name in missing:
            raise AttributeError(f"no {name} in this Spark")
        return plain(owner, name)

    monkeypatch.setattr(classic, "_reach", reach)


def small(home, spark) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=2)
    # With an option of the reader footers do not decide how many rows come: Spark counts them.
    options = {"parquet.filter.dictionary.enabled": "true"}
    source = hf.sources.Files(str(home / "in"), schema=SCHEMA, files_max=1, options=options)
    rows = pipe.source("in", source)
    rows = rows.with_columns(y="abs(x)")  # an expression whose plan is looked at
    totals = rows.group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet(str(home / "out")))
    return pipe


@pytest.mark.parametrize("name", NAMES)
def test_without_a_private_name_the_public_way_gives_the_same(
    spark, tmp_path, monkeypatch, caplog, name
) -> None:
    """The answer and the counts are right; what is off is logged once and noted in the summary."""
    for number in range(FILES):
        write_rows(tmp_path / "in", number, [(f"k{n}", n, 0.0, 1) for n in range(number + 1)])
    without(monkeypatch, name)
    with caplog.at_level(logging.WARNING, logger="holdfast.spark"):
        summary = small(tmp_path, spark).run()
    want = {f'["k{n}", {FILES - n}, {n * (FILES - n)}]': 1 for n in range(FILES)}
    assert published(spark, tmp_path / "out", ["k", "n", "s"]) == want
    assert (summary.epochs, summary.rows) == (FILES, sum(range(1, FILES + 1)))
    off = classic.turned_off()
    if name in ERRORS | {"cachedPlan"}:  # nothing failed, and no rows were kept
        assert off == {}
    else:
        assert off
        assert all(name in classic.FAST_PATHS[path].names for path in off)
    lines = [record for record in caplog.records if record.name == "holdfast.spark"]
    assert len(lines) == len(off)
    assert [note for note in summary.notes if "fast path" in note] == classic.notes()


@pytest.mark.parametrize("missing", [["_origin", "java_exception"], ["getClass"], ["getCondition"]])
def test_without_the_names_of_errors_an_error_is_still_typed(
    spark, tmp_path, monkeypatch, missing
) -> None:
    """What a job complains of is told by its text, with a remedy."""
    write_rows(tmp_path / "in", 0, [("a", 1, 0.0, 1)])
    without(monkeypatch, *missing)
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=2)
    rows = pipe.source("in", hf.sources.Files(str(tmp_path / "in"), schema=SCHEMA))
    broken = rows.select("CASE WHEN x > 1 THEN k ELSE raise_error('no such thing') END AS k")
    broken.group_by("k").agg(n=hf.count(), name="t")
    with pytest.raises(HoldfastError) as caught:
        pipe.run()
    assert "no such thing" in str(caught.value)
    assert caught.value.remedy


def test_a_fast_path_that_makes_something_else_is_turned_off(spark, monkeypatch) -> None:
    """The first frame of a fast path is compared with the public call's."""
    plain = classic._wrapped
    monkeypatch.setattr(
        classic, "_wrapped", lambda frame, made: plain(frame, made).withColumnRenamed("b", "c")
    )
    frame = classic.Selection("id AS b")(spark.range(2))
    assert frame.columns == ["b"]
    assert set(classic.turned_off()) == {"selection"}


def test_an_error_of_the_user_turns_nothing_off(spark) -> None:
    """An expression that Spark refuses is refused by both ways."""
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        classic.Selection("no_such_column")(spark.range(2))
    assert classic.turned_off() == {}


@pytest.mark.parametrize("name", classic.FAST_PATHS["light listener"].names)
def test_the_guard_saves_without_its_light_listener(spark, tmp_path, monkeypatch, name) -> None:
    """It hears of batches through PySpark's own listener instead."""
    spark.range(5).write.parquet(str(tmp_path / "in"))
    without(monkeypatch, name)
    schema = T.StructType([T.StructField("id", T.LongType())])
    frame = spark.readStream.schema(schema).parquet(str(tmp_path / "in"))
    place = str(tmp_path / "cp")
    query = frame.writeStream.format("noop").option("checkpointLocation", place).start()
    attachment = guard.attach(query, tmp_path / "store", every=1, spark=spark)
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert attachment.wait(1)
    attachment.stop(final=False)
    assert attachment.saved
    assert attachment.errors == []
    assert set(classic.turned_off()) == {"light listener"}


def test_without_its_private_names_a_query_must_be_told_its_location(
    spark, tmp_path, monkeypatch
) -> None:
    """A typed error asks for the location, and with it the guard attaches."""
    spark.range(5).write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    place = str(tmp_path / "cp")
    query = frame.writeStream.format("noop").option("checkpointLocation", place).start()
    try:
        query.processAllAvailable()
        for name in classic.FAST_PATHS["checkpoint location"].names:
            monkeypatch.setattr(classic, "_off", {})
            with monkeypatch.context() as patch:
                without(patch, name)
                with pytest.raises(InvalidInputError) as caught:
                    guard.attach(query, tmp_path / "store", every=1, spark=spark)
            assert caught.value.kind == "no_location"
        attachment = guard.attach(
            query, tmp_path / "store", every=1, spark=spark, checkpoint_location=place
        )
        attachment.stop()
    finally:
        query.stop()
    assert len(attachment.saved) == 1


def test_a_bridge_that_breaks_off_turns_nothing_off() -> None:
    """An error of the bridge itself has no cause in Java, and no name is missing."""
    from py4j.protocol import Py4JError, Py4JNetworkError

    assert classic.causes_of(Py4JError("An error occurred while calling o1.collect")) == []
    assert classic.causes_of(Py4JNetworkError("Answer from Java side is empty")) == []
    assert classic.turned_off() == {}
