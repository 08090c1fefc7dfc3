"""What once went wrong with outputs: who owns them, going back, forks, the journal as a sink."""

from __future__ import annotations

import base64
import json
import shutil

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.cli.main import main
from holdfast.errors import HoldfastError
from holdfast.journal import JournalReader
from tests.helpers.regression_world import D, Place, put, refused

SCHEMA = "k long, x long"


@pytest.fixture
def place(spark, tmp_path):
    return Place(spark, tmp_path)


def longs(place: Place, number: int, keys, values, directory: str = "in") -> None:
    name = f"{number:03d}.parquet"
    put(place.home / directory, name, k=pa.array(keys, pa.int64()), x=pa.array(values, pa.int64()))


def totals(
    place: Place, name: str = "p", *, out: str = "up", log: str | None = None
) -> hf.Pipeline:
    """Sums by key into an upsert output, and into a changelog if one is named."""
    p = place.pipeline(name)
    sums = (
        p.source("s", place.files(SCHEMA, files_max=1)).group_by("k").agg(t=hf.sum("x"), name="t")
    )
    if log is not None:
        p.sink("b", sums, place.out(log))
    p.sink("a", sums, place.out(out, mode="upsert"))
    return p


def batch_totals(place: Place) -> dict:
    frame = place.spark.read.parquet(str(place.home / "in")).groupBy("k").sum("x")
    return {tuple(row): 1 for row in frame.collect()}


@pytest.mark.parametrize("mode", ["changelog", "upsert"])
def test_two_sinks_with_one_path_are_refused_or_lose_nothing(place, mode) -> None:
    """One output has one owner."""
    longs(place, 0, [1, 2, 3, 4], [10, 20, 30, 40])

    def use():
        p = place.pipeline()
        rows = p.source("s", place.files(SCHEMA))
        p.sink("a", rows.where("k < 3"), place.out(mode=mode))
        p.sink("b", rows.where("k >= 3"), place.out(mode=mode))
        p.run()

    if refused(place, use) is None:
        want = {(1, 10): 1, (2, 20): 1, (3, 30): 1, (4, 40): 1}
        assert place.rows("out", "k", "x") == want


def test_two_pipelines_with_one_output_never_delete_each_others_epochs(place) -> None:
    """The second owner is refused; what the first has published stays."""

    def pipe(name: str, directory: str) -> hf.Pipeline:
        p = place.pipeline(name)
        rows = p.source("s", place.files(SCHEMA, directory, files_max=1))
        p.sink("a", rows.where("x >= 0"), place.out())
        return p

    longs(place, 0, [1], [-1], "one")
    for number in range(2):
        longs(place, number, [1], [-1], "two")
    pipe("p1", "one").run()
    refusals = 0
    owned = {(1, 11): 1}
    for number in range(2):
        try:
            pipe("p2", "two").run()
            owned |= {(2, 22): 1} if number else {}
        except HoldfastError:
            refusals += 1
        longs(place, 8, [1], [11], "one") if not number else None
        pipe("p1", "one").run()
        longs(place, 9, [2], [22], "two") if not number else None
    assert place.rows("out", "k", "x") == owned
    assert refusals in (0, 2)


def test_a_fork_with_its_origins_outputs_is_refused(place) -> None:
    """A fork that runs its origin's program changes nothing that the origin has published."""

    def pipe(name: str) -> hf.Pipeline:
        p = place.pipeline(name)
        p.sink("b", p.source("s", place.files(SCHEMA, files_max=1)), place.out())
        return p

    for number in range(2):
        longs(place, number, [number], [number])
    pipe("p").run(epochs=1)
    assert main(["fork", str(place.home / "cp" / "p"), "latest", "q"]) == 0
    pipe("p").run()
    (place.home / "in" / "001.parquet").rename(place.home / "001.parquet")
    with pytest.raises(HoldfastError):
        pipe("q").run()
    assert place.rows("out", "k", "x") == {(0, 0): 1, (1, 1): 1}


def test_the_upsert_output_of_a_fork_is_complete(place) -> None:
    """A fork with outputs of its own shows what came before the fork, too."""
    longs(place, 0, [1, 2], [1, 2])
    totals(place).run()
    assert main(["fork", str(place.home / "cp" / "p"), "latest", "q"]) == 0
    longs(place, 1, [9], [3])
    totals(place, "q", out="fork").run()
    assert place.rows("fork", "k", "t") == {(1, 1): 1, (2, 2): 1, (9, 3): 1}


@pytest.mark.parametrize("case", ["deleted", "link", "moved", "changelog"])
def test_a_lost_or_moved_output_is_rebuilt_or_refused(place, case) -> None:
    """An output never holds only what changed since it was lost."""

    def pipe(out: str) -> hf.Pipeline:
        p = place.pipeline()
        sums = p.source("s", place.files(SCHEMA)).group_by("k").agg(t=hf.sum("x"), name="t")
        p.sink(
            "a", sums, place.out(f"o/{out}", mode="changelog" if case == "changelog" else "upsert")
        )
        return p

    longs(place, 0, range(10), range(10))
    pipe("out").run()
    if case in ("deleted", "changelog"):
        shutil.rmtree(place.home / "o")
    elif case == "link":
        (place.home / "o" / "out").unlink()
    longs(place, 1, range(10, 20), range(10))
    out = "moved" if case == "moved" else "out"
    if refused(place, lambda: pipe(out).run()) is None:
        assert sum(place.rows(f"o/{out}", "k", "t").values()) == 20


def test_going_back_far_asks_all_sinks_first(place) -> None:
    """A savepoint older than the kept versions is reached, or refused before any output changes."""
    for number in range(3):
        longs(place, number, [1, 2, number], [1, 2, 3])
    totals(place, log="log").run()
    assert main(["pin", str(place.home / "cp" / "p"), "save"]) == 0
    for number in range(3, 16):
        longs(place, number, [1, 2, number], [1, 2, 3])
    totals(place, log="log").run()
    want = batch_totals(place)
    if main(["restore", "--to", "save", str(place.home / "cp" / "p")]) == 0:
        totals(place, log="log").run()
    assert place.rows("log", "k", "t") == want
    assert place.rows("up", "k", "t") == want


@pytest.mark.parametrize("behind", ["a filter", "a user function"])
def test_going_back_before_the_first_output_works(place, behind) -> None:
    """A checkpoint from before the first row of an upsert output can be restored.

    Behind a user function the rows cannot be made again, and need not be: there were none.
    """

    def largest(rows, _state, _context):
        kept = rows.group_by("k").aggregate([("x", "max")]).rename_columns(["k", "x"])
        return kept, kept

    def pipe() -> hf.Pipeline:
        p = place.pipeline()
        rows = p.source("s", place.files(SCHEMA, files_max=1)).where("x > 100")
        if behind == "a user function":
            rows = rows.apply(
                largest, key="k", state_schema="x long", output_schema=SCHEMA, name="f"
            )
        p.sink("a", rows, place.out("up", mode="upsert"))
        return p

    longs(place, 0, [1], [1])
    pipe().run()
    assert main(["pin", str(place.home / "cp" / "p"), "save"]) == 0
    longs(place, 1, [1], [101])
    pipe().run()
    assert main(["restore", "--to", "save", str(place.home / "cp" / "p")]) == 0
    pipe().run()
    assert place.rows("up", "k", "x") == {(1, 101): 1}


ROWS = {
    "k": pa.array(["a", "b"]),
    "big": pa.array([2**53 + 1, None], pa.int64()),
    "f": pa.array([0.12345678901234567, 1e-15]),
    "ts": pa.array([1_700_000_000_123_456] * 2, pa.timestamp("us", "UTC")),
    "d": pa.array([D("12345678901234567890.123456789")] * 2, pa.decimal128(38, 9)),
}
TYPES = "k string, big long, f double, ts timestamp, d decimal(38,9)"


def into_journal(place: Place, schema: str) -> None:
    p = place.pipeline(partitions=1)
    rows = p.source("s", place.files(schema))
    p.sink("o", rows.select("k"), place.out("o"))
    p.sink("j", rows, hf.sinks.Journal(place.home / "j", entity="k", kind="=row"))
    p.run()


def out_of_journal(place: Place, schema: str) -> hf.Pipeline:
    q = place.pipeline("q", store="cq", partitions=1)
    names = [part.split()[0] for part in schema.split(", ")]
    rows = q.source("s", hf.sources.Journal(place.home / "j", payload=schema))
    q.sink("o", rows.select(*names), place.out("back"))
    q.run()
    return q


def test_the_payload_of_a_journal_sink_is_lossless(place) -> None:
    """A journal as a sink and then as a source gives every value back, to the last digit."""
    put(place.home / "in", "a.parquet", **ROWS)
    into_journal(place, TYPES)
    out_of_journal(place, TYPES)
    want = [tuple(row.values()) for row in pa.table(ROWS).to_pylist()]
    assert place.rows("back", *ROWS) == dict.fromkeys(want, 1)
    payloads = [
        json.loads(text, parse_int=str, parse_float=str)
        for batch, _ in JournalReader(str(place.home / "j")).follow(timeout_ms=100)
        for text in batch.column("payload").to_pylist()
    ]
    assert {row["big"] for row in payloads if row.get("big") is not None} == {str(2**53 + 1)}


def test_a_null_among_longs_passes_from_journal_to_journal(place) -> None:
    """A long column with a null stays a long column."""
    put(place.home / "in", "a.parquet", k=pa.array(["a", "b"]), v=pa.array([1, None], pa.int64()))
    into_journal(place, "k string, v long")
    out_of_journal(place, "k string, v long")
    assert place.rows("back", "k", "v") == {("a", 1): 1, ("b", None): 1}


def test_bytes_go_through_a_journal_sink_or_are_refused_before_anything_runs(place) -> None:
    """A sink never commits an epoch that it can never publish."""
    data = b"\xff\xfe\x00"
    put(place.home / "in", "a.parquet", k=pa.array(["a"]), b=pa.array([data]))
    if refused(place, lambda: into_journal(place, "k string, b binary")) is None:
        ((text,),) = [
            batch.column("payload").to_pylist()
            for batch, _ in JournalReader(str(place.home / "j")).follow(timeout_ms=100)
        ]
        assert json.loads(text)["b"] == base64.b64encode(data).decode()
