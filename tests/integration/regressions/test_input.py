"""What once went wrong with files and values that come in, each by the rule that holds since."""

from __future__ import annotations

import datetime as dt
import os
import statistics
from collections import Counter

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError
from tests.helpers.regression_world import D, Place, put, refused


@pytest.fixture
def place(spark, tmp_path):
    return Place(spark, tmp_path)


NAMES = [
    "a*.parquet",
    "data[1].parquet",
    "b{x,y}.parquet",
    "a:b.parquet",
    "a%20b.parquet",
    "back\\slash.parquet",
    "q?.parquet",
    "käse,#'+ =.parquet",
]


def test_a_listed_name_is_a_literal_whatever_it_contains(place) -> None:
    """Names that look like patterns or escapes are read once, each file by itself."""
    for number, name in enumerate(["a1.parquet", "a2.parquet", *NAMES]):
        path = put(place.home / "in[3]", name, k=pa.array([1]), x=pa.array([10**number]))
        os.utime(path, (1_700_000_000 + number,) * 2)
    p = place.pipeline()
    rows = p.source("s", place.files("k long, x long", "in[3]", files_max=4))
    p.sink("o", rows.group_by("k").agg(t=hf.sum("x"), n=hf.count(), name="t"), place.out())
    p.run()
    assert place.rows("out", "k", "t", "n") == {(1, 1_111_111_111, 10): 1}


def test_directories_name_columns_as_in_plain_spark(place) -> None:
    """A column of the schema that only a directory's name holds is filled from there."""
    schema = "k long, x long, day date"
    for day, x in (("2024-01-01", 10), ("2024-01-02", 20)):
        put(place.home / "in" / f"day={day}", "a.parquet", k=pa.array([1]), x=pa.array([x]))
    p = place.pipeline()
    rows = p.source("s", place.files(schema))
    p.sink("o", rows.group_by("day").agg(t=hf.sum("x"), name="t"), place.out())
    p.run()
    batch = place.spark.read.schema(schema).parquet(str(place.home / "in"))
    want = Counter(tuple(row) for row in batch.groupBy("day").sum("x").collect())
    assert place.rows("out", "day", "t") == want


def test_the_time_zone_of_the_session_holds(place) -> None:
    """Texts without a zone mean what they mean to a batch in the same session."""
    (place.home / "in").mkdir()
    (place.home / "in" / "a.csv").write_text("1,2024-03-31 00:30:00\n")
    schema, columns = "k long, t timestamp", ["k", "unix_timestamp(t) AS u", "hour(t) AS h"]
    place.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        p = place.pipeline()
        rows = p.source("s", place.files(schema, format="csv"))
        p.sink("o", rows.select(*columns), place.out())
        p.run()
        batch = place.spark.read.schema(schema).csv(str(place.home / "in")).selectExpr(*columns)
        want = Counter(tuple(row) for row in batch.collect())
    finally:
        place.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert place.rows("out", "k", "u", "h") == want


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ("parquet", b"PAR1 garbage PAR1"),
        ("csv", b"1,2\nx,y\n"),
        ("json", b'{"k":1,"x":'),
        ("parquet", None),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_cause(place, form, body) -> None:
    """The error names the file and Spark's reason, and does not promise that trying again helps."""
    if body is None:
        put(place.home / "in", "bad-file", k=pa.array([1]), x=pa.array(["a"]))
    else:
        (place.home / "in").mkdir()
        (place.home / "in" / "bad-file").write_bytes(body)
    p = place.pipeline(partitions=1)
    source = place.files("k long, x long", format=form, on_bad=None if body is None else "fail")
    p.sink("o", p.source("s", source), place.out())
    with pytest.raises(HoldfastError) as caught:
        p.run()
    assert "bad-file" in str(caught.value)
    assert "An error occurred while calling" not in str(caught.value)
    assert not getattr(caught.value, "retryable", False)
    assert place.committed() == 0


def test_the_same_bytes_with_another_time_are_the_same_file(place) -> None:
    """A copied or touched file that was read goes on; a changed one is refused and says what to do."""

    def pipe():
        p = place.pipeline()
        p.sink("o", p.source("s", place.files("k long, x long")), place.out())
        return p

    path = put(place.home / "in", "a.parquet", k=pa.array([1]), x=pa.array([1]))
    pipe().run()
    os.utime(path)
    put(place.home / "in", "b.parquet", k=pa.array([2]), x=pa.array([2]))
    try:
        pipe().run()
    except HoldfastError as error:
        assert error.kind == "file_changed"
        assert any("time" in name or "modified" in name for name in error.facts)
        assert error.remedy
    else:
        assert place.rows("out", "k", "x") == {(1, 1): 1, (2, 2): 1}


@pytest.mark.parametrize(("precision", "scale"), [(38, 18), (38, 10), (20, 8), (18, 9), (38, 0)])
def test_sums_of_decimals_with_weights_are_exact(place, precision, scale) -> None:
    """Every digit of a decimal survives weights, at every precision."""
    unit = D(1).scaleb(-scale)
    values = pa.array([unit * 1_123_456_789, unit * 2], pa.decimal128(precision, scale))
    put(place.home / "in", "a.parquet", k=pa.array(["a", "a"]), x=values, w=pa.array([1, 3]))
    p = place.pipeline()
    rows = p.source(
        "s", place.files(f"k string, x decimal({precision},{scale}), w long", weight="w")
    )
    p.sink("o", rows.group_by("k").agg(t=hf.sum("x"), name="t"), place.out())
    p.run()
    assert place.rows("out", "t") == {(unit * 1_123_456_795,): 1}


def test_the_smallest_long_can_be_retracted(place) -> None:
    """Extremes of a type come and go."""
    put(
        place.home / "in",
        "a.parquet",
        k=pa.array(["a", "a"]),
        x=pa.array([-(2**63), 5]),
        w=pa.array([1, 1]),
    )
    put(place.home / "in", "b.parquet", k=pa.array(["a"]), x=pa.array([-(2**63)]), w=pa.array([-1]))
    p = place.pipeline()
    rows = p.source("s", place.files("k string, x long, w long", weight="w", files_max=1))
    p.sink("o", rows.group_by("k").agg(t=hf.sum("x"), name="t"), place.out())
    p.run()
    assert place.rows("out", "k", "t") == {("a", 5): 1}


def test_doubles_that_were_retracted_leave_no_trace(place) -> None:
    """Sums, averages and deviations are those of the rows that are there."""
    calm = [1e9 + i * 0.001 for i in range(10)]
    first = [
        ("a", 1e17),
        ("a", 1.0),
        ("b", 1.7e308),
        ("b", 1.7e308),
        *(("c", x) for x in calm),
        ("c", -1e15),
        ("d", 1.0),
        ("d", float("inf")),
    ]
    gone = [("a", 1e17), ("b", 1.7e308), ("c", -1e15), ("d", float("inf"))]
    for name, rows, weight in (("a", first, 1), ("b", gone, -1)):
        put(
            place.home / "in",
            f"{name}.parquet",
            k=pa.array([k for k, _ in rows]),
            x=pa.array([x for _, x in rows]),
            w=pa.array([weight] * len(rows)),
        )
    p = place.pipeline()
    rows = p.source("s", place.files("k string, x double, w long", weight="w", files_max=1))
    sums = rows.group_by("k").agg(t=hf.sum("x"), a=hf.avg("x"), v=hf.stddev("x"), name="t")
    p.sink("o", sums, place.out())
    p.run()
    left = [("a", 1.0), ("b", 1.7e308), *(("c", x) for x in calm), ("d", 1.0)]
    batch = place.spark.createDataFrame(left, "k string, x double").groupBy("k")
    want = {r[0]: tuple(r)[1:] for r in batch.agg({"x": "sum"}).collect()}
    deviation = {"c": statistics.stdev(calm)}  # exact arithmetic inside: batch itself is less so
    found = {row[0]: row[1:] for row in place.rows("out", "k", "t", "a", "v")}
    assert set(found) == set(want)
    for key, (total, mean, spread) in found.items():
        assert total == pytest.approx(want[key][0], rel=1e-12)
        assert mean == pytest.approx(
            want[key][0] / len([1 for k, _ in left if k == key]), rel=1e-12
        )
        assert spread == (pytest.approx(deviation[key], rel=1e-15) if key in deviation else None)


@pytest.mark.parametrize("mode", ["changelog", "upsert"])
@pytest.mark.parametrize("name", ["_weight", "hf_epoch"])
def test_a_column_with_a_name_of_the_outputs_is_refused_or_kept(place, name, mode) -> None:
    """A reader never sees a column of Holdfast's in place of the user's."""
    put(place.home / "in", "a.parquet", **{"k": pa.array([1, 1, 2]), name: pa.array([5, 6, 7])})

    def use():
        p = place.pipeline()
        rows = p.source("s", place.files(f"k long, {name} long"))
        p.sink(
            "o", rows.group_by("k").agg(**{name: hf.sum(name), "name": "t"}), place.out(mode=mode)
        )
        p.run()

    if (error := refused(place, use)) is not None:
        assert name in str(error)
    else:
        assert place.rows("out", "k", name) == {(1, 11): 1, (2, 7): 1}


def test_collated_keys_compare_as_in_plain_spark(place) -> None:
    """group_by and distinct go by the collation, or are refused at analysis."""
    schema = "k string collate UTF8_LCASE, x long"
    put(place.home / "in", "a.parquet", k=pa.array(["A", "a", "b"]), x=pa.array([1, 2, 3]))

    def use():
        p = place.pipeline()
        rows = p.source("s", place.files(schema))
        p.sink("o", rows.group_by("k").agg(t=hf.sum("x"), name="t"), place.out())
        p.sink("o2", rows.select("k").distinct(name="d"), place.out("out2"))
        p.run()

    if refused(place, use) is None:
        assert place.rows("out", "t") == {(3,): 2}
        assert sum(place.rows("out2", "k").values()) == 2


@pytest.mark.parametrize("what", ["join", "group", "variant"])
def test_maps_in_structs_and_variants_are_refused_at_analysis_or_right(place, what) -> None:
    """What cannot be compared is found before the store is opened, never in mid-epoch."""
    spark = place.spark
    text = "select 1L x, named_struct('a', map('x', 1L)) k"
    schema = "x long, k struct<a:map<string,bigint>>"
    if what == "variant":
        text, schema = (
            "select 2L x, parse_json('2') k union all select 3L, null",
            "x long, k variant",
        )
    spark.sql(text).write.parquet(str(place.home / "in"))

    def use():
        p = place.pipeline(partitions=1)
        rows = p.source("s", place.files(schema))
        if what == "join":
            rows = rows.join(rows.select("x", "k AS k2"), "x", "left", name="j")
        elif what == "group":
            rows = rows.group_by("k").agg(x=hf.count(), name="g")
        p.sink("o", rows, place.out())
        p.run()

    error = refused(place, use)
    if error is None:
        assert sum(place.rows("out", "x").values()) == (2 if what == "variant" else 1)
    else:
        assert error.kind not in ("job_failed", "sink_failed")
        assert not (place.home / "cp" / "p").exists()


@pytest.mark.parametrize("kind", ["char(5)", "varchar(5)"])
def test_char_and_varchar_are_right_or_refused_by_name(place, kind) -> None:
    """No error of Spark's own comes through bare."""
    put(place.home / "in", "a.parquet", k=pa.array(["a"]), x=pa.array([1]))

    def use():
        p = place.pipeline()
        p.sink("o", p.source("s", place.files(f"k {kind}, x long")), place.out())
        p.run()

    if refused(place, use) is None:
        assert sum(place.rows("out", "k").values()) == 1


SECOND, BEGIN = 1_000_000, 1_711_846_800


def moments(seconds) -> pa.Array:
    micros = [None if s is None else (BEGIN + s) * SECOND for s in seconds]
    return pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))


def test_a_key_that_the_ttl_forgot_takes_its_timer_with_it(place) -> None:
    """A key that comes back without a timer is not called by the one that it had before."""
    files = [
        [("k", 0, 100), ("z", 0, None)],
        [("z", 20, None)],
        [("k", 21, None), ("z", 21, None)],
        [("k", 95, None)],
        [("z", 101, None)],
        [("z", 102, None)],
    ]
    for number, rows in enumerate(files):
        put(
            place.home / "in",
            f"{number}.parquet",
            k=pa.array([r[0] for r in rows]),
            t=moments(r[1] for r in rows),
            wake=moments(r[2] for r in rows),
        )

    def remember(changes, state, context):
        import pyarrow as pa

        last = dict(zip(state["k"].to_pylist(), state["wake"].to_pylist(), strict=True))
        last |= dict(zip(changes["k"].to_pylist(), changes["wake"].to_pylist(), strict=True))
        keys, due = context.keys["k"].to_pylist(), context.due["k"].to_pylist()
        stamp = pa.timestamp("us", "UTC")
        kept = {"k": keys, "wake": pa.array([last.get(k) for k in keys], stamp)}
        out = {
            "k": pa.array(due, pa.string()),
            "epoch": pa.array([context.epoch] * len(due), pa.int64()),
        }
        return pa.table(out), pa.table({**kept, "k": pa.array(keys, pa.string())})

    p = place.pipeline()
    source = place.files("k string, t timestamp, wake timestamp", files_max=1)
    called = p.source("s", source, event_time="t").apply(
        remember,
        key=["k"],
        state_schema="wake timestamp",
        output_schema="k string, epoch long",
        name="a",
        time="t",
        ttl="10 seconds",
        timers="wake",
        text="remember",
    )
    p.sink("o", called, place.out())
    p.run()
    assert place.rows("out", "k", "epoch") == {}


def test_what_dedupe_remembers_depends_on_the_watermark_alone(place) -> None:
    """However epochs were cut, a row that is on time and no duplicate any more goes through."""
    histories = {
        "one": [[("k", 0)], [("z", 1000)], [("k", 1001)], [("y", 1002)]],
        "two": [[("k", 0)], [("z", 1000)], [("y", 1000)], [("k", 1001)]],
    }
    for name, files in histories.items():
        for number, rows in enumerate(files):
            put(
                place.home / name,
                f"{number}.parquet",
                k=pa.array([r[0] for r in rows]),
                t=moments(r[1] for r in rows),
            )
        p = place.pipeline(store=f"cp-{name}")
        source = place.files("k string, t timestamp", name, files_max=1)
        rows = p.source("s", source, event_time="t")
        first = rows.dedupe("k", name="d", time="t", within="5 seconds")
        p.sink("o", first, place.out(f"out-{name}"))
        p.run()
        when = dt.datetime.fromtimestamp(BEGIN + 1001, dt.UTC)
        assert place.rows(f"out-{name}", "k", "t")[("k", when)] == 1


def test_a_sketch_keeps_its_bound_for_arrays_with_nulls(place) -> None:
    """Values that differ only in where their nulls stand are different values."""
    values = [v for i in range(2_000) for v in ([i, None], [None, i], [i])]
    put(
        place.home / "in",
        "a.parquet",
        k=pa.array(["a"] * len(values)),
        v=pa.array(values, pa.list_(pa.int32())),
    )

    def use():
        p = place.pipeline()
        rows = p.source("s", place.files("k string, v array<int>"))
        counts = rows.group_by("k").agg(a=hf.approx_count_distinct("v", rsd=0.02), name="g")
        p.sink("o", counts, place.out(mode="upsert"))
        p.run()

    if refused(place, use) is None:
        ((count,),) = place.rows("out", "a")
        assert abs(count - len(values)) <= 0.1 * len(values)
