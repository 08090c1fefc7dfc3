"""Every type of Spark as a key, a value and an order: equal to batch, or refused at analysis."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

import holdfast as hf
from holdfast.errors import HoldfastError
from tests.helpers.pipeline_world import rows_of
from tests.helpers.pipeline_world import text as words

CI = "string collate UTF8_LCASE"
NEVER = [
    CI,
    f"array<{CI}>",
    f"struct<a:{CI}>",
    "variant",
    "struct<v:variant>",
    "void",
    "array<void>",
    "interval year to month",
    "interval",
    "interval day",
    "time(3)",
    "geometry(4326)",
    "geography(4326)",
]
"""Types that no operator keeps."""
NO_KEY = ["map<string,int>", "struct<a:map<string,int>>", "array<map<string,int>>"]
"""Types that operators keep, and that nothing goes by."""


def _state(changes, state, context):
    return None, state


KEY_ROLES = {
    "group": lambda s: s.group_by("x").agg(n=hf.count(), name="op"),
    "window": lambda s: s.group_by("x", hf.tumbling("t", size="1 hour")).agg(
        n=hf.count(), name="op"
    ),
    "distinct": lambda s: s.distinct(name="op"),
    "dedupe": lambda s: s.dedupe("x", name="op"),
    "join": lambda s: s.join(s.select("x", "k AS k2"), "x", name="op"),
    "except": lambda s: s.except_(s.where("k > 1"), name="op"),
    "top": lambda s: s.top_k(1, per="k", order_by="x", name="op"),
    "per": lambda s: s.top_k(1, per="x", order_by="k", name="op"),
    "count_distinct": lambda s: s.group_by("k").agg(n=hf.count_distinct("x"), name="op"),
    "approx": lambda s: s.group_by("k").agg(n=hf.approx_count_distinct("x"), name="op"),
    "min": lambda s: s.group_by("k").agg(n=hf.min("x"), name="op"),
    "first": lambda s: s.group_by("k").agg(n=hf.first("k", order_by="x"), name="op"),
    "set": lambda s: s.group_by("k").agg(n=hf.collect_set("x", limit=5), name="op"),
    "apply": lambda s: s.apply(
        _state, key="x", state_schema="n long", output_schema="n long", name="op"
    ),
}
VALUE_ROLES = {
    "joined": lambda s: s.join(s.select("k", "k AS k2"), "k", name="op"),
    "deduped": lambda s: s.dedupe("k", name="op"),
    "ordered": lambda s: s.top_k(1, per="k", order_by="k", name="op"),
    "applied": lambda s: s.apply(
        _state, key="k", state_schema="n long", output_schema="n long", name="op"
    ),
}


def declared(home: Path, spark, kind: str, role) -> hf.Pipeline:
    pipe = hf.Pipeline("p", store=home / "cp", spark=spark, partitions=1)
    source = hf.sources.Files(str(home / "in"), schema=f"k long, t timestamp, x {kind}")
    role(pipe.source("s", source))
    return pipe


def known(spark, kind: str) -> bool:
    """Whether this Spark has the type at all; the newest supported one has every one of them."""
    try:
        return bool(StructType.fromDDL(f"x {kind}"))
    except PySparkException:
        assert spark.version < "4.3", kind
        return False


def test_types_that_cannot_be_right_are_refused_before_anything_runs(spark, tmp_path) -> None:
    """Every operator refuses every such type with its kind, the operator and the column."""
    cases = [
        (kind, name, role) for kind in NEVER for name, role in {**KEY_ROLES, **VALUE_ROLES}.items()
    ]
    cases += [(kind, name, role) for kind in NO_KEY for name, role in KEY_ROLES.items()]
    there = {kind for kind in (*NEVER, *NO_KEY) if known(spark, kind)}
    wrong = []
    for kind, name, role in cases:
        if kind not in there:
            continue
        try:
            declared(tmp_path, spark, kind, role).resolve()
            wrong.append(f"{name} of {kind}: accepted")
        except HoldfastError as error:
            expected = error.kind in ("unsupported_key", "unsupported_type")
            facts = error.facts
            if not expected or facts.get("column") not in ("x", "n") or facts["operator"] != "op":
                wrong.append(f"{name} of {kind}: {error}")
    assert not wrong, "\n".join(wrong)
    assert not (tmp_path / "cp").exists()


def test_maps_are_values_of_every_operator_that_compares_nothing_by_them(spark, tmp_path) -> None:
    """Maps travel at any depth."""
    for kind in NO_KEY:
        for role in VALUE_ROLES.values():
            declared(tmp_path, spark, kind, role).resolve()


def test_what_parquet_would_change_is_refused_by_sinks(spark, tmp_path) -> None:
    """Variants, intervals and times of day do not come back from Parquet as what they were."""
    for kind in ("variant", "struct<v:variant>", "interval day to second", "array<time(6)>"):
        if not known(spark, kind):
            continue
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
        rows = pipe.source("s", hf.sources.Files(str(tmp_path / "in"), schema=f"x {kind}"))
        pipe.sink("o", rows, hf.sinks.Parquet(str(tmp_path / "out")))
        with pytest.raises(HoldfastError) as caught:
            pipe.resolve()
        assert (caught.value.kind, caught.value.facts["column"]) == ("unsupported_type", "x")


def test_keys_of_a_join_that_no_decimal_holds_both_of_are_refused(spark, tmp_path) -> None:
    """Decimals of different scales are compared in one type that loses nothing, or not at all."""
    for kind, refused in (("decimal(30,8)", False), ("decimal(38,0)", True)):
        pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
        sides = [
            pipe.source(
                name, hf.sources.Files(str(tmp_path / name), schema=f"x {scale}, {name} long")
            )
            for name, scale in (("a", kind), ("b", "decimal(38,10)"))
        ]
        sides[0].join(sides[1], "x", name="j")
        if not refused:
            pipe.resolve()
            continue
        with pytest.raises(HoldfastError) as caught:
            pipe.resolve()
        assert caught.value.kind == "join_key_types"


def test_text_with_a_length_is_refused_where_it_is_declared(tmp_path) -> None:
    """Spark reads no char and varchar, so a schema with one is refused, also inside a struct."""
    for kind in (
        "char(5)",
        "VARCHAR(5)",
        "character (3)",
        "struct<a: varchar(3)>",
        "array<char(2)>",
    ):
        with pytest.raises(HoldfastError) as caught:
            hf.sources.Files(str(tmp_path), schema=f"k long, x {kind}")
        assert (caught.value.kind, caught.value.facts["column"]) == ("invalid_schema", "x")


RIGHT = {
    "bool": ("boolean", ["true", "false", "null"]),
    "i8": ("tinyint", ["-128Y", "127Y"]),
    "i64": ("bigint", ["-9223372036854775808L", "9223372036854775807L", "null"]),
    "f32": ("float", ["float('nan')", "float('-0.0')", "float('0.0')", "float('-inf')"]),
    "f64": ("double", ["double('nan')", "-0.0D", "0.0D", "5e-324D", "double('inf')", "null"]),
    "dec": ("decimal(38,18)", ["0.000000000000000001", "-99999999999999999999.999999999999999999"]),
    "txt": ("string", ["''", "'a'", "'A'", "'é'", "null"]),
    "bin": ("binary", ["X''", "X'00'", "X'0000'", "null"]),
    "day": ("date", ["date'0001-01-01'", "date'9999-12-31'"]),
    "ts": (
        "timestamp",
        ["timestamp'1900-01-01 00:00:00.000001'", "timestamp'9999-12-31 23:59:59'"],
    ),
    "ntz": ("timestamp_ntz", ["timestamp_ntz'1900-01-01 00:00:00'", "null"]),
    "iv": ("interval day to second", ["interval '-1 02:03:04.000005' day to second", "null"]),
    "arr": ("array<int>", ["array()", "array(null)", "array(null, 1)", "array(1, null)", "null"]),
    "str": (
        "struct<a:double,b:string>",
        [
            "named_struct('a', -0.0D, 'b', null)",
            "named_struct('a', 0.0D, 'b', '')",
            "named_struct('a', double('nan'), 'b', null)",
            "null",
        ],
    ),
}


def rows(spark, number: int):
    """Rows that differ from the first one in a single column each, so that each type decides."""
    texts = []
    base = {name: f"cast({values[0]} AS {kind})" for name, (kind, values) in RIGHT.items()}
    for name, (kind, values) in RIGHT.items():
        for value in values:
            row = {**base, name: f"cast({value} AS {kind})"}
            texts.append("SELECT " + ", ".join(f"{v} AS {n}" for n, v in row.items()))
    return spark.sql(" UNION ALL ".join(texts)).selectExpr("*", f"{number}L AS no")


def test_types_that_are_kept_are_equal_exactly_where_they_are_in_batch(spark, tmp_path) -> None:
    """Grouping, distinct rows, joins, comparisons and orders by all types at once equal batch."""
    names = list(RIGHT)
    for number in (1, 2):
        rows(spark, number).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    schema = ", ".join(f"{name} {kind}" for name, (kind, _) in RIGHT.items()) + ", no long"
    pipe = hf.Pipeline("p", store=tmp_path / "cp", spark=spark, partitions=1)
    stream = pipe.source("s", hf.sources.Files(str(tmp_path / "in"), schema=schema, files_max=1))
    two = stream.where("no = 2").select(*names)
    made = {
        "grouped": stream.group_by(*names).agg(n=hf.count(), s=hf.sum("no"), name="grouped"),
        "unique": stream.select(*names).distinct(name="unique"),
        "joined": stream.where("no = 1").join(two, names, name="joined"),
        "minus": stream.where("no = 1").select(*names).except_(two, name="minus", all=True),
        "top": stream.top_k(7, order_by=[*(f"{n} desc" for n in names), "no"], name="top"),
        "counts": stream.group_by("no").agg(
            **{f"c_{n}": hf.count_distinct(n) for n in names},
            **{f"a_{n}": hf.approx_count_distinct(n, rsd=0.01) for n in names},
            name="counts",
        ),
    }
    for name, made_stream in made.items():
        shown = (
            made_stream if name == "counts" else made_stream.with_columns(iv="cast(iv AS string)")
        )
        pipe.sink(f"{name}_out", shown, hf.sinks.Parquet(str(tmp_path / name)))
    pipe.run()
    from pyspark.sql import functions as F

    batch = spark.read.schema(schema).parquet(str(tmp_path / "in"))
    one = batch.where("no = 1")
    twice = batch.where("no = 2").select(*names)
    order = ", ".join([*(f"{n} desc" for n in names), "no"])
    wanted = {
        "grouped": batch.groupBy(*names).agg(F.expr("count(1) AS n"), F.expr("sum(no) AS s")),
        "unique": batch.select(*names).distinct(),
        "joined": one.join(twice, names),
        "minus": one.select(*names).exceptAll(twice),
        "top": batch.selectExpr("*", f"row_number() over (order by {order}) r")
        .where("r <= 7")
        .drop("r"),
        "counts": batch.groupBy("no").agg(
            *(F.expr(f"count(distinct {n}) AS c_{n}") for n in names)
        ),
    }
    for name, frame in wanted.items():
        columns = frame.columns
        expected = rows_of(as_text(frame), columns)
        found = changelog(spark, tmp_path / name, columns)
        assert found == expected, name
    for row in spark.read.parquet(str(tmp_path / "counts")).collect():
        assert all(row[f"a_{n}"] == row[f"c_{n}"] for n in names)


def as_text(frame):
    """Values as Spark writes them: what is equal in Spark is one text, once zeros are."""
    normal = {
        "f32": "f32 + float(0)",
        "f64": "f64 + 0D",
        "str": "named_struct('a', str.a + 0D, 'b', str.b)",
    }
    shown = [
        f"cast({'if(str is null, null, ' + normal[n] + ')' if n == 'str' else normal.get(n, n)} "
        f"AS string) AS {n}"
        if n != "bin"
        else "hex(bin) AS bin"
        for n in frame.columns
    ]
    return frame.selectExpr(*shown)


def changelog(spark, path: Path, columns: list[str]) -> Counter:
    frame = spark.read.parquet(str(path))
    weight = "_weight" if "_weight" in frame.columns else "1 AS _weight"
    text = as_text(frame.select(*columns))
    total: Counter = Counter()
    weights = [row[0] for row in frame.selectExpr(weight).collect()]
    for row, n in zip(text.collect(), weights, strict=True):
        total[words(tuple(row))] += n
    return Counter({row: n for row, n in total.items() if n})
