"""A journal sink read by a journal source gives the same rows, for every type; the rest is refused."""

from __future__ import annotations

import decimal
import json
import math
import random
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.connectors.journal import sink as journal_sink
from holdfast.errors import HoldfastError
from holdfast.journal import JournalReader, Query

D = decimal.Decimal
US = [0, -1, 1_700_000_000_123_456, None, -62_135_596_800_000_000, 253_402_300_799_999_999,
      1_699_164_000_000_001, 253_402_300_800_000_000, -62_135_596_800_000_001]  # fmt: skip
DAYS = [0, -1, None, -719_162, 2_932_896, 2_932_897, -141_428]
CHANCE = random.Random(20261116)
FLOATS = [struct.unpack("<f", CHANCE.randbytes(4))[0] for _ in range(60)]
DOUBLES = [struct.unpack("<d", CHANCE.randbytes(8))[0] for _ in range(60)]
ODD = [
    0.0,
    -0.0,
    math.nan,
    math.inf,
    -math.inf,
    None,
    1.0,
    0.12345678901234567,
    1e-15,
    1e22,
    5e-324,
]
TEXTS = ["", None, 'q"\\/', "".join(map(chr, range(32))), "é😀\u2028\ud7ff", "null", " pad ", "1"]
SPAN = pa.duration("us")
AT = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")


def cell(values, kind):
    """A column of 72 rows: the values, again and again."""
    return pa.array([values[i % len(values)] for i in range(72)], kind)


COLUMNS = {
    "bool boolean": cell([True, None, False], pa.bool_()),
    "i8 byte": cell([-128, None, 127], pa.int8()),
    "i16 short": cell([-(2**15), None, 2**15 - 1], pa.int16()),
    "i32 int": cell([-(2**31), None, 2**31 - 1], pa.int32()),
    "i64 long": cell([2**53 + 1, None, -(2**63), 2**63 - 1, 1], pa.int64()),
    "f32 float": cell([*FLOATS, -0.0, 1e-45, None, math.nan, math.inf, -math.inf], pa.float32()),
    "f64 double": cell([*DOUBLES, *ODD], pa.float64()),
    "d9 decimal(9,2)": cell([D("-1234567.89"), None, D("0.00")], pa.decimal128(9, 2)),
    "d38 decimal(38,9)": cell([D("12345678901234567890123456789.123456789"), D("1E-9"), None],
                              pa.decimal128(38, 9)),
    "d0 decimal(38,0)": cell([D("9" * 38), D("-" + "9" * 38), None], pa.decimal128(38, 0)),
    "ds decimal(38,38)": cell([D("1E-38"), D("-0.5"), None], pa.decimal128(38, 38)),
    "s string": cell(TEXTS, pa.string()),
    "b binary": cell([b"\xff\xfe\x00", b"", None, b"a", b"ab", b"abc" * 99], pa.binary()),
    "day date": cell(DAYS, pa.int32()).cast(pa.date32()),
    "at timestamp": cell(US, AT),
    "ntz timestamp_ntz": cell(US, NTZ),
    "span interval day to second": cell([0, -1, None, 2**63 - 1, -(2**63), 90_061_000_001], SPAN),
    "hours interval hour": cell([0, None, -3_600_000_000, 360_000_000_000], SPAN),
    "l array<long>": cell([[2**53 + 1, None], [], None, [1]], pa.list_(pa.int64())),
    "ll array<array<decimal(20,8)>>": cell(
        [[[D("123456789012.12345678"), None], None], None, []], pa.list_(pa.list_(pa.decimal128(20, 8)))
    ),
    "lb array<binary>": cell([[b"\xff", None, b""], None], pa.list_(pa.binary())),
    "lh array<interval minute>": cell([[60_000_000, None], None, []], pa.list_(SPAN)),
    "m map<string,double>": cell([[("a", -0.0), ('"', None)], None, []], pa.map_(pa.string(), pa.float64())),
    "ml map<long,timestamp>": cell(
        [[(2**53 + 1, 1_700_000_000_123_456), (-1, None)], None, []], pa.map_(pa.int64(), AT)
    ),
    "md map<date,map<int,string>>": cell(
        [[(0, [(1, "x"), (2, None)]), (-1, None)], None, []],
        pa.map_(pa.date32(), pa.map_(pa.int32(), pa.string())),
    ),
    "ms map<string,map<int,interval hour>>": cell(
        [[("k", [(1, 3_600_000_000)]), ("n", None)], None],
        pa.map_(pa.string(), pa.map_(pa.int32(), SPAN)),
    ),
    "st struct<a:long,b:struct<c:binary,d:timestamp_ntz>,e:array<struct<f:double>>>": cell(
        [{"a": None, "b": {"c": b"\x00", "d": 1}, "e": [{"f": 0.1}, None]}, None,
         {"a": 2**53 + 1, "b": None, "e": None}, {"a": 1, "b": {"c": None, "d": None}, "e": []}],
        pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.binary()), ("d", NTZ)])),
                   ("e", pa.list_(pa.struct([("f", pa.float64())])))]),
    ),
    "mst struct<m:map<int,int>,n:int>": cell(
        [{"m": [(1, None)], "n": 1}, None, {"m": None, "n": None}],
        pa.struct([("m", pa.map_(pa.int32(), pa.int32())), ("n", pa.int32())]),
    ),
}  # fmt: skip
SCHEMA = ", ".join(COLUMNS)


def exact(column):
    """Values that compare as they are stored: bits of floats, numbers of times."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    elif pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_struct(kind):
        parts = [exact(part) for part in column.flatten()]
        return [None if not ok else row for ok, row in zip(
            column.is_valid().to_pylist(), zip(*parts, strict=True), strict=True)]  # fmt: skip
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        if pa.types.is_map(kind):
            column = column.cast(pa.list_(pa.struct([("k", kind.key_type), ("v", kind.item_type)])))
        flat = iter(exact(column.flatten()))
        sizes = column.value_lengths().to_pylist()
        return [None if size is None else [next(flat) for _ in range(size)] for size in sizes]
    return [repr(value) for value in column.to_pylist()]


def rows_of(table):
    parts = [exact(table.column(name).combine_chunks()) for name in table.schema.names]
    return sorted(map(repr, zip(*parts, strict=True)))


def stored(directory):
    """What a Parquet sink has published, without the columns of its own."""
    return pa.concat_tables(
        [pq.ParquetFile(path).read() for path in sorted(directory.rglob("*.parquet"))]
    )


@pytest.fixture
def rows(spark, tmp_path):
    """A file with every type."""
    (tmp_path / "in").mkdir()
    names = [name.split()[0] for name in COLUMNS]
    table = pa.table([*COLUMNS.values(), pa.array(range(72))], [*names, "n"])
    pq.write_table(table, tmp_path / "in" / "0.parquet")
    return table


def pipeline(name, spark, home):
    return hf.Pipeline(name, store=home / "cp", spark=spark, partitions=1)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_journal_chained_into_a_journal_gives_the_same_rows(spark, tmp_path, rows, zone):
    """Every type that the sink takes comes back bit for bit, whatever the session's time zone."""
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        first = pipeline("first", spark, tmp_path)
        source = first.source(
            "in", hf.sources.Files(str(tmp_path / "in"), schema=f"{SCHEMA}, n long")
        )
        first.sink("j", source, hf.sinks.Journal(tmp_path / "j", entity="s", kind="=row"))
        first.run()
        second = pipeline("second", spark, tmp_path)
        events = second.source(
            "in", hf.sources.Journal(tmp_path / "j", payload=f"{SCHEMA}, n long")
        )
        # Parquet has no intervals: for those, a second journal says the same as the first.
        plain = [*(text.split()[0] for text in COLUMNS if "interval" not in text), "n"]
        every = events.select(*rows.schema.names)
        second.sink("out", every.select(*plain), hf.sinks.Parquet(tmp_path / "out"))
        second.sink("j2", every, hf.sinks.Journal(tmp_path / "j2", entity="s", kind="=row"))
        second.run()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert rows_of(stored(tmp_path / "out").select(plain)) == rows_of(rows.select(plain))
    assert payloads(tmp_path / "j2") == payloads(tmp_path / "j")


def payloads(path):
    with JournalReader(path) as journal:
        events = journal.query(Query()).to_table()
    return sorted(map(str, events.column("payload").to_pylist()))


def test_payloads_are_plain_json(spark, tmp_path, rows):
    """Anybody's JSON parser reads them, with all digits."""
    pipe = pipeline("p", spark, tmp_path)
    source = pipe.source("in", hf.sources.Files(str(tmp_path / "in"), schema=f"{SCHEMA}, n long"))
    pipe.sink("j", source, hf.sinks.Journal(tmp_path / "j", entity="s", kind="day", scope="=x"))
    pipe.run()
    with JournalReader(tmp_path / "j") as journal:
        events = journal.query(Query()).to_table().to_pylist()
    assert len(events) == 72
    for event in events:
        row = json.loads(event["payload"], parse_float=D)
        n = row["n"]
        assert row["i64"] == rows.column("i64")[n].as_py()
        want = rows.column("d38")[n].as_py()
        assert (None if row["d38"] is None else D(row["d38"])) == want
        assert row["s"] == rows.column("s")[n].as_py()
        assert event["entity"] == (row["s"] or "")
        assert event["kind"] == (row["day"] or "")
        assert event["scope"] == "x"


@pytest.mark.parametrize(
    ("columns", "options", "kind"),
    [
        ("s string, x interval year to month", {}, "unsupported_type"),
        ("s string, x array<struct<v:interval month>>", {}, "unsupported_type"),
        ("s string, x map<string,variant>", {}, "unsupported_type"),
        ("s string", {"entity": "gone"}, "unknown_column"),
        ("s string", {"kind": "gone"}, "unknown_column"),
        ("s string", {"scope": "gone"}, "unknown_column"),
        ("s string, x array<int>", {"kind": "x"}, "unsupported_type"),
    ],
)
def test_what_cannot_be_published_is_refused_before_the_first_epoch(
    spark, tmp_path, columns, options, kind
):
    """At analysis: neither a store nor a journal has been made by then."""
    (tmp_path / "in").mkdir()
    pipe = pipeline("p", spark, tmp_path)
    source = pipe.source("in", hf.sources.Files(str(tmp_path / "in"), schema=columns))
    sink = hf.sinks.Journal(tmp_path / "j", **{"entity": "s", "kind": "=row", **options})
    pipe.sink("j", source, sink)
    with pytest.raises(HoldfastError) as caught:
        pipe.run()
    assert caught.value.kind == kind
    assert caught.value.remedy
    assert not (tmp_path / "cp").exists()
    assert not (tmp_path / "j").exists()


def test_a_large_epoch_is_appended_in_pieces_and_once(spark, tmp_path, monkeypatch):
    """Pieces keep memory bounded; a repeat after a crash, also with other pieces, adds nothing."""
    from holdfast.testing import SimulatedCrash, crash_at

    (tmp_path / "in").mkdir()
    texts = ["x" * 100 + str(n) for n in range(3_000)]
    pq.write_table(pa.table({"s": texts}), tmp_path / "in" / "0.parquet")

    def run():
        pipe = pipeline("p", spark, tmp_path)
        source = pipe.source("in", hf.sources.Files(str(tmp_path / "in"), schema="s string"))
        pipe.sink("j", source, hf.sinks.Journal(tmp_path / "j", entity="s", kind="=row"))
        pipe.run(takeover=True)

    monkeypatch.setattr(journal_sink, "PIECE_BYTES", 50_000)
    with pytest.raises(SimulatedCrash), crash_at("journal_append.after_sync", nth=4):
        run()
    monkeypatch.setattr(journal_sink, "PIECE_BYTES", 170_000)
    with pytest.raises(SimulatedCrash), crash_at("outcome.before_record"):
        run()
    monkeypatch.setattr(journal_sink, "PIECE_BYTES", 1 << 25)
    run()
    with JournalReader(tmp_path / "j") as journal:
        table = journal.query(Query()).to_table()
    assert sorted(table.column("entity").to_pylist()) == sorted(texts)
