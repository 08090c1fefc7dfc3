"""The door in one session: Columns, views, changelogs, going back."""

from __future__ import annotations

import shutil
import sys
from collections import Counter

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

import holdfast as hf
from holdfast.api.columns import expression_text
from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError, RefusedError
from holdfast.format.canonical import seal
from holdfast.format.documents import SMALL_BYTES_MAX
from holdfast.format.owner import OWNER, parse_owner

pytestmark = pytest.mark.spark

SCHEMA = "k string, x long, f double"


def put(folder, number, rows):
    (folder / "in").mkdir(exist_ok=True)
    names = dict(zip("kxf", zip(*rows, strict=True), strict=True))
    kinds = {"k": pa.string(), "x": pa.int64(), "f": pa.float64()}
    table = pa.table({name: pa.array(list(v), kinds[name]) for name, v in names.items()})
    pq.write_table(table, folder / "in" / f"{number:03d}.parquet")


def shop(folder, spark, name="p", **sink):
    pipe = hf.Pipeline(name, store=folder / "cp", spark=spark, partitions=2)
    files = hf.sources.Files(folder / "in", schema=SCHEMA, format="parquet", files_max=1)
    rows = pipe.source("rows", files)
    totals = rows.group_by("k").agg(hf.sum("x").alias("name"), n=hf.count(), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet(folder / "out", **sink))
    pipe.sink("plain", rows.select("k"), hf.sinks.Parquet(folder / "plain"))
    return pipe


def bag(frame) -> Counter:
    return Counter(tuple(row) for row in frame.collect())


def filled(folder, spark, **sink):
    for number, rows in enumerate(
        [
            [("a", 1, 0.5), ("b", 2, 1.5), ("b", 2, 1.5)],
            [("a", 3, -0.0)],
            [("c", 4, float("nan")), ("b", 1, 2.0)],
        ]
    ):
        put(folder, number, rows)
    pipe = shop(folder, spark, **sink)
    assert pipe.run().epochs == 3
    return pipe


VERSIONS = [
    Counter({("a", 1, 1): 1, ("b", 4, 2): 1}),
    Counter({("a", 4, 2): 1, ("b", 4, 2): 1}),
    Counter({("a", 4, 2): 1, ("b", 5, 3): 1, ("c", 4, 1): 1}),
]


def test_columns_give_the_rows_that_the_same_sql_gives(spark, tmp_path):
    """where, select, with_columns and withColumn take PySpark Columns, mixed with SQL text."""
    put(tmp_path, 0, [("a", 1, 0.5), ("b", 2, 1.5), (None, 3, 2.5), ("a", 7, 3.5)])

    @F.udf("long")
    def twice(x):
        return 2 * x

    def build(name, steps):
        pipe = hf.Pipeline(name, store=tmp_path / "cp", spark=spark, partitions=2)
        files = hf.sources.Files(tmp_path / "in", schema=SCHEMA, format="parquet")
        totals = steps(pipe.source("rows", files)).group_by("k").agg(t=hf.sum("y"), name="totals")
        again = totals.where(F.col("t") > 2).select(F.upper("k").alias("k"), "t")
        pipe.sink("out", again, hf.sinks.Parquet(tmp_path / name))
        pipe.run()
        return bag(hf.read_changelog(spark, tmp_path / name)), pipe

    ours, pipe = build(
        "columns",
        lambda rows: (
            rows.where(F.col("k").isNotNull() & (F.col("f") > 0))
            .with_columns(y=twice("x"), z=F.lit(1))
            .withColumn("y", F.col("y") + F.col("z"))
            .select("k", F.col("y"))
        ),
    )
    theirs, _ = build(
        "sql", lambda rows: rows.where("k IS NOT NULL AND f > 0").select("k", "2 * x + 1 AS y")
    )
    assert ours == theirs == Counter({("A", 18): 1, ("B", 5): 1})
    put(tmp_path, 1, [("b", 5, 1.0)])
    assert pipe.run().rows == 1  # the same Columns are the same pipeline


def test_the_text_of_a_column_is_the_same_in_every_process(spark):
    """Numbers that Spark counts through a process and stack traces are no part of it."""
    twice = F.udf(lambda x: 2 * x, "long")
    deep = F.when(F.col("x") > 1, F.col("y"))

    def columns():
        return [
            F.transform("xs", lambda x: x + F.col("b")),
            F.aggregate("xs", F.lit(0), lambda total, x: total + x),
            F.transform("xs", lambda x: F.transform("ys", lambda y: x + y)),
            twice("x"),
            twice(deep + 1).alias("z"),
            twice(F.transform("xs", lambda x: x + 1)),
        ]

    first = [expression_text(column, "select") for column in columns()]
    assert first == [expression_text(column, "select") for column in columns()]
    assert len(set(first)) == len(first)
    assert not [text for text in first if "@" in text]
    for moving in (F.lit(b"ab"),):
        with pytest.raises(InvalidInputError) as caught:
            expression_text(moving, "select")
        assert caught.value.kind == "column_without_text"


def test_columns_where_names_belong_are_refused_by_name(spark):
    """Keys, orderings, aggregates and joins go by names; the error says how to name an expression."""
    pipe = hf.Pipeline("names", store="unused", spark=spark)
    rows = pipe.source("rows", hf.sources.Files("unused", schema=SCHEMA))
    x = F.col("x")
    cases = {
        "invalid_key": [
            lambda: rows.group_by(x),
            lambda: rows.dedupe(x, name="d"),
            lambda: rows.latest(x, order_by="x", name="l"),
            lambda: rows.join(rows, x == x, name="j"),
            lambda: rows.join(rows, [x], name="j"),
            lambda: rows.join_static(spark.range(1), [x], name="s"),
        ],
        "invalid_order": [
            lambda: rows.top_k(1, order_by=x.desc(), name="t"),
            lambda: rows.top_k(1, order_by=[x], name="t"),
            lambda: rows.latest("k", order_by=x, name="l"),
        ],
        "invalid_expression": [
            lambda: rows.group_by("k").agg(t=hf.sum(x), name="a"),
            lambda: rows.group_by("k").agg(hf.max(x).alias("t"), name="a"),
        ],
    }
    for kind, calls in cases.items():
        for call in calls:
            with pytest.raises(InvalidInputError) as caught:
                call()
            assert caught.value.kind == kind


def test_a_column_whose_session_is_gone_is_refused():
    """The error says that one session is needed."""

    class Gone(sys.modules["pyspark.sql"].Column):
        def __new__(cls):
            return object.__new__(cls)

        def __repr__(self):
            raise ConnectionRefusedError("no gateway")

    with pytest.raises(InvalidInputError) as caught:
        expression_text(Gone(), "where")
    assert caught.value.kind == "column_without_session"


def test_a_view_is_the_same_for_spark_arrow_pandas_and_duckdb(spark, tmp_path):
    """Now and at an older checkpoint; it shows itself without reading."""
    duckdb = pytest.importorskip("duckdb")
    pipe = filled(tmp_path, spark)
    for at, wanted in (("latest", VERSIONS[2]), (0, VERSIONS[0]), ("epoch:1", VERSIONS[1])):
        view = pipe.view("totals", at=at)
        assert bag(view.to_spark()) == bag(view.to_spark(spark)) == wanted
        rows = view.to_arrow().to_pylist()
        assert Counter(tuple(row.values()) for row in rows) == wanted
        assert Counter(view.to_pandas().itertuples(index=False, name=None)) == wanted
        assert Counter(view.to_duckdb().fetchall()) == wanted
        own = duckdb.connect()
        assert Counter(view.to_duckdb(own).order("k").fetchall()) == wanted
    assert repr(view).startswith("<View of totals at epoch 1, checkpoint ")
    assert "totals" in view._repr_html_()
    with pytest.raises(AttributeError, match=r"use to_spark\(\)"):
        view.dataframe(spark)
    with pytest.raises(AttributeError, match=r"use to_arrow\(\)"):
        view.arrow()
    with hf.checkpoint.open_store(
        tmp_path / "cp", "p", topology=pipe.reader().manifest("latest").topology
    ) as store:
        assert repr(store).startswith("<Store p in ")
        assert "epoch 2" in repr(store)
        assert "epoch 2" in store._repr_html_()


def test_a_changelog_is_folded_to_the_rows_after_any_epoch(spark, tmp_path):
    """Also of a stream that only adds rows, and through a fold of old epochs."""
    pipe = filled(tmp_path, spark)
    for epoch, wanted in enumerate(VERSIONS):
        frame = hf.read_changelog(spark, tmp_path / "out", as_of=epoch)
        assert frame.columns == ["k", "name", "n"]
        assert bag(frame) == wanted
    newest = hf.read_changelog(spark, str(tmp_path / "out"))
    assert bag(newest) == VERSIONS[2]
    assert bag(hf.read_changelog(spark, tmp_path / "out", as_of=99)) == VERSIONS[2]
    plain = hf.read_changelog(spark, f"file://{tmp_path}/plain")
    assert bag(plain) == Counter({("a",): 2, ("b",): 3, ("c",): 1})
    one = hf.read_changelog(spark, tmp_path / "plain", as_of=0)
    assert bag(one) == Counter({("a",): 1, ("b",): 2})
    owner = tmp_path / "out" / OWNER
    record = parse_owner(owner.read_bytes(), OWNER)
    _check_records(spark, tmp_path, owner, record)
    assert pipe.plan_outputs() == ["out: continue", "plain: continue"]


def rewrite(owner, record, **facts):
    """An owner record with other facts, valid in itself."""
    _, data = seal(msgspec.structs.replace(record, **facts), bytes_max=SMALL_BYTES_MAX)
    owner.write_bytes(data)


def _check_records(spark, folder, owner, record):
    """What the owner record says decides which epochs count."""

    def write(**facts):
        rewrite(owner, record, **facts)

    def kind(**facts):
        with pytest.raises(RefusedError) as caught:
            hf.read_changelog(spark, folder / "out", **facts)
        return caught.value.kind

    before = owner.read_bytes()
    write(epoch=-1)  # nothing is published as a whole
    assert bag(hf.read_changelog(spark, folder / "out")) == Counter()
    write(epoch=1)  # epoch 2 is only half there
    assert bag(hf.read_changelog(spark, folder / "out")) == VERSIONS[1]
    write(folds=[(0, 1)])
    assert kind(as_of=0) == "no_such_version"
    assert bag(hf.read_changelog(spark, folder / "out", as_of=1)) == VERSIONS[1]
    write(since=2)
    assert kind(as_of=1) == "no_such_version"
    write(building=True)
    assert kind() == "output_building"
    owner.write_bytes(before)


def test_a_folded_changelog_is_read_as_before(spark, tmp_path):
    """Rows are the same after a fold; an epoch inside a fold is refused."""
    pipe = filled(tmp_path, spark)
    for number in range(3, 8):
        put(tmp_path, number, [("a", number, 0.0)])
    pipe = hf.Pipeline(
        "p", store=tmp_path / "cp", spark=spark, partitions=2,
        settings=hf.Settings(retain=2),
    )  # fmt: skip
    files = hf.sources.Files(tmp_path / "in", schema=SCHEMA, format="parquet", files_max=1)
    rows = pipe.source("rows", files)
    totals = rows.group_by("k").agg(hf.sum("x").alias("name"), n=hf.count(), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet(tmp_path / "out"))
    pipe.sink("plain", rows.select("k"), hf.sinks.Parquet(tmp_path / "plain"))
    pipe.run()
    wanted = bag(hf.read_changelog(spark, tmp_path / "out"))
    assert pipe.compact_output("out")
    assert (tmp_path / "out").is_symlink()
    assert bag(hf.read_changelog(spark, tmp_path / "out")) == wanted
    with pytest.raises(RefusedError) as caught:
        hf.read_changelog(spark, tmp_path / "out", as_of=1)
    assert caught.value.kind == "no_such_version"


def test_a_changelog_that_misses_rows_or_is_none_is_an_error(spark, tmp_path):
    """A retraction without its row is never silently left out; an upsert output is no changelog."""
    import shutil

    filled(tmp_path, spark)
    shutil.rmtree(tmp_path / "out" / "hf_epoch=0")
    with pytest.raises(Exception, match="more rows are retracted than were given"):
        hf.read_changelog(spark, tmp_path / "out").collect()
    other = tmp_path / "upsert"
    other.mkdir()
    filled(other, spark, mode="upsert")
    with pytest.raises(InvalidInputError) as caught:
        hf.read_changelog(spark, other / "out")
    assert caught.value.kind == "not_a_changelog"


def test_a_changelog_of_every_type_is_folded(spark, tmp_path):
    """Arrays, structs, maps, binaries, NaN and null are equal to themselves."""
    root = tmp_path / "all"
    values = [
        "array(1, null) AS a",
        "named_struct('x', 1, 'y', array('z')) AS s",
        "map('k', 1) AS m",
        "cast('ab' AS binary) AS b",
        "double('NaN') AS d",
        "cast(null AS string) AS n",
        "decimal(1.50) AS c",
        "timestamp '2026-01-01' AS t",
        "date '2026-01-01' AS `odd name.x`",
    ]
    for epoch, weights in enumerate([(1, 1), (-1, 1), (1, -1)]):
        weight = f"if(id = 0, {weights[0]}, {weights[1]}) AS _weight"
        rows = spark.range(2).selectExpr(*values, weight)
        rows.coalesce(1).write.parquet(str(root / f"hf_epoch={epoch}"))
    for epoch in range(3):
        frame = hf.read_changelog(spark, root, as_of=epoch)
        assert frame.count() == 2
        assert frame.columns == ["a", "s", "m", "b", "d", "n", "c", "t", "odd name.x"]


def test_a_run_goes_back_to_a_checkpoint_and_asks_the_outputs_first(spark, tmp_path):
    """By epoch, `epoch:n` and time; what an output cannot follow is refused, and nothing changed."""
    pipe = filled(tmp_path, spark)
    assert pipe.plan_outputs(from_checkpoint=0)[0].startswith("out: retract")
    pipe.run(from_checkpoint=0, epochs=0)
    assert bag(hf.read_changelog(spark, tmp_path / "out")) == VERSIONS[0]
    assert bag(shop(tmp_path, spark).view("totals").to_spark()) == VERSIONS[0]
    again = shop(tmp_path, spark)
    assert again.run().resumed_from == 0
    assert bag(hf.read_changelog(spark, tmp_path / "out")) == VERSIONS[2]
    with pytest.raises(NotFoundError) as caught:
        again.run(from_checkpoint="epoch:77")
    assert caught.value.kind == "no_checkpoint"
    with pytest.raises(InvalidInputError):
        again.run(from_checkpoint=1.5)
    before = [summary.checkpoint for summary in again.reader().list()]
    owner, calls = tmp_path / "out" / OWNER, []
    rewrite(owner, parse_owner(owner.read_bytes(), OWNER), pipeline="another")
    with pytest.raises(RefusedError) as refusal:
        again.run(from_checkpoint=1, on_epoch=calls.append)
    assert refusal.value.facts["sink"] == "out"
    assert [summary.checkpoint for summary in again.reader().list()] == before
    assert bag(hf.read_changelog(spark, tmp_path / "out")) == VERSIONS[2]
    assert calls == []


def test_a_changelog_is_read_whatever_its_directory_is_called(spark, tmp_path):
    """A space, a percent sign, a pattern: Spark takes the name as it is."""
    made = spark.range(3).selectExpr("id AS k", "1L AS _weight")
    made.write.parquet(str(tmp_path / "made" / "hf_epoch=0"))
    for name in ("a b", "50%20", "[x]", "{y,z}", "z*", "q?", "é", "a\\b"):
        shutil.copytree(tmp_path / "made", tmp_path / name)
        assert hf.read_changelog(spark, tmp_path / name).count() == 3


def test_a_damaged_changelog_and_no_session_are_typed_errors(spark, tmp_path):
    """What Spark cannot read is named with a remedy, before any row is asked for."""
    spark.range(3).selectExpr("id AS k").write.parquet(str(tmp_path / "out" / "hf_epoch=0"))
    with pytest.raises(InvalidInputError) as none:
        hf.read_changelog(None, tmp_path / "out")
    assert none.value.kind == "invalid_argument"
    for file in (tmp_path / "out").glob("hf_epoch=*/*.parquet"):
        file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(CorruptionError) as torn:
        hf.read_changelog(spark, tmp_path / "out")
    assert torn.value.kind == "unreadable_output"
    assert torn.value.remedy
