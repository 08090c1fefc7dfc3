"""What one epoch takes of files: by rows, by bytes in memory, and in parts of large files."""

from __future__ import annotations

import gzip
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.files.pieces import EpochLimits, FileFacts, FilePiece, next_pieces
from holdfast.connectors.files.row_ranges import RangeReader, ranges_of
from holdfast.connectors.files.sizes import SizeProbe, same_types
from holdfast.errors import InvalidInputError
from holdfast.sources import Files
from holdfast.storage import Entry, open_storage
from holdfast.storage.open import StorageLocation
from tests.unit.connectors.test_files import reopened

SCHEMA = "id bigint, name string"


def table(rows: int, start: int = 0, text: str = "x") -> pa.Table:
    ids = range(start, start + rows)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [text] * rows})


def put(path, rows: pa.Table, *, group: int = 100, age_s: float = 60.0) -> None:
    pq.write_table(rows, path, row_group_size=group)
    stamp = time.time() - age_s
    os.utime(path, (stamp, stamp))


def taken(reader) -> list[list[tuple[str, int, int | None]]]:
    """By epoch, the file, first row and end of each piece."""
    found = []
    while (split := reader.plan()) is not None:
        found.append([(p.path, p.start, p.stop) for p in split.detail])
        reader.advance(split)
    return found


@given(
    files=st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 9), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    limits=st.builds(EpochLimits, st.integers(1, 3), st.integers(1, 40), st.integers(1, 400)),
)
def test_pieces_cover_every_row_once_and_keep_to_the_limits(files, limits) -> None:
    """In order, without gaps; only what cannot be cut is larger than an epoch may be."""
    rests = []
    for number, (rows, width, group, cuts) in enumerate(files):
        bounds = tuple(range(group, rows, group)) if cuts else None
        facts = FileFacts(rows, rows * width, bounds)
        rests.append(FilePiece(Entry(f"f{number}", 10), facts))
    expected = [(rest.path, row) for rest in rests for row in range(rest.facts.rows or 0)]
    rows_seen = []
    while rests:
        pieces = next_pieces(rests, limits)
        assert pieces
        assert all(piece.stop is None for piece in pieces[:-1])
        for piece in pieces:
            stop = piece.facts.rows if piece.stop is None else piece.stop
            rows_seen += [(piece.path, row) for row in range(piece.start, stop)]
        if len(pieces) > 1 or pieces[0].facts.bounds is not None:
            wide = pieces[0].facts.row_bytes > limits.bytes
            assert sum(piece.rows for piece in pieces) <= limits.rows
            assert wide or sum(piece.bytes for piece in pieces) <= limits.bytes
        assert len(pieces) <= limits.files
        rests = rests[len(pieces) :]
        if pieces[-1].stop is not None:
            rests.insert(0, FilePiece(pieces[-1].entry, pieces[-1].facts, pieces[-1].stop))
    assert rows_seen == expected


def test_a_large_file_takes_several_epochs_cut_at_row_groups(tmp_path) -> None:
    """Small files before it go alone; what is left of it takes the next ones along."""
    put(tmp_path / "a.parquet", table(50), age_s=90)
    put(tmp_path / "b.parquet", table(1000), age_s=80)
    put(tmp_path / "c.parquet", table(60), age_s=70)
    reader = Files(tmp_path, schema=SCHEMA, rows_max=450).open("s")
    assert taken(reader) == [
        [("a.parquet", 0, None)],
        [("b.parquet", 0, 400)],
        [("b.parquet", 400, 800)],
        [("b.parquet", 800, None), ("c.parquet", 0, None)],
    ]
    assert reader.backlog().done == reader.backlog().total


def test_a_row_group_that_is_too_large_is_cut_by_rows(tmp_path) -> None:
    """One group of a thousand rows, three hundred at a time."""
    put(tmp_path / "a.parquet", table(1000), group=1000)
    reader = Files(tmp_path, schema=SCHEMA, rows_max=300).open("s")
    stops = [[stop for _, _, stop in epoch] for epoch in taken(reader)]
    assert stops == [[300], [600], [900], [None]]


def test_a_plan_ahead_goes_behind_the_plan_before(tmp_path) -> None:
    """While one part is worked on, the next one is planned; limits of a run apply at once."""
    put(tmp_path / "a.parquet", table(1000))
    reader = Files(tmp_path, schema=SCHEMA, rows_max=400).open("s")
    first = reader.plan()
    reader.limit_rows(200)
    second = reader.plan(first)
    assert [(p.start, p.stop) for p in (*first.detail, *second.detail)] == [(0, 400), (400, 600)]
    reader.advance(first)
    reader.limit_rows(10**9)
    third = reader.plan(second)
    assert [(p.start, p.stop) for p in third.detail] == [(600, None)]
    assert (first.rows, second.rows, third.rows) == (400, 200, 400)
    assert reader.plan(third) is None


def test_a_restart_resumes_in_the_middle_of_a_file(tmp_path) -> None:
    """Also when an older file came meanwhile; history ends where the position stands."""
    put(tmp_path / "b.parquet", table(1000), age_s=80)
    source = Files(tmp_path, schema=SCHEMA, rows_max=400)
    reader = source.open("s")
    reader.advance(reader.plan())
    put(tmp_path / "a.parquet", table(10), age_s=500)
    again = reopened(source, reader)
    past = [[(p.path, p.start, p.stop) for p in split.detail] for split in again.history()]
    assert past == [[("b.parquet", 0, 400)]]
    assert taken(again) == [
        [("b.parquet", 400, 800)],
        [("b.parquet", 800, None), ("a.parquet", 0, None)],
    ]


@pytest.mark.parametrize(
    ("change", "kind"), [("other", "file_changed"), ("gone", "file_part_lost")]
)
def test_a_file_that_was_begun_must_stay_as_it_was(tmp_path, change, kind) -> None:
    """Other bytes of the same size, or no file: nothing else is read in its place."""
    put(tmp_path / "b.parquet", table(1000), age_s=80)
    put(tmp_path / "c.parquet", table(10), age_s=10)
    source = Files(tmp_path, schema=SCHEMA, rows_max=400)
    reader = source.open("s")
    reader.advance(reader.plan())
    if change == "gone":
        (tmp_path / "b.parquet").unlink()
    else:
        size = (tmp_path / "b.parquet").stat().st_size
        put(tmp_path / "b.parquet", table(1000, start=1), age_s=80)
        with open(tmp_path / "b.parquet", "r+b") as file:
            file.truncate(size)
    again = reopened(source, reader)
    with pytest.raises(InvalidInputError) as caught:
        again.plan()
    assert caught.value.kind == kind
    assert caught.value.facts["path"] == "b.parquet"


def test_the_same_bytes_with_a_new_time_are_the_same_begun_file(tmp_path) -> None:
    """As for files that were read whole."""
    put(tmp_path / "b.parquet", table(1000), age_s=80)
    source = Files(tmp_path, schema=SCHEMA, rows_max=400)
    reader = source.open("s")
    reader.advance(reader.plan())
    os.utime(tmp_path / "b.parquet", (1_600_000_000, 1_600_000_000))
    assert taken(reopened(source, reader))[0] == [("b.parquet", 400, 800)]


def test_a_file_that_is_read_in_part_is_not_cleaned_up(tmp_path) -> None:
    """Only with its last row it counts as read."""
    put(tmp_path / "b.parquet", table(1000))
    source = Files(tmp_path, schema=SCHEMA, rows_max=600, after_read="delete")
    reader = source.open("s")
    reader.advance(reader.plan())
    position = reader.save(None)
    assert (position.files, position.part.rows) == (0, 600)
    reader.committed(None, position)
    assert (tmp_path / "b.parquet").exists()
    reader.advance(reader.plan())
    reader.committed(None, reader.save(None))
    assert not (tmp_path / "b.parquet").exists()


def probe(root, schema: str = SCHEMA, format: str = "parquet", **options):  # noqa: A002
    storage = open_storage(str(root))
    found = SizeProbe(storage, str(root), format=format, schema=schema, options=options, cuts=True)
    return lambda name: found.facts([Entry(name, (root / name).stat().st_size)])[0]


@pytest.mark.parametrize("coded", [False, True])
def test_repeated_values_count_as_often_as_they_are_there(tmp_path, coded) -> None:
    """A footer says 2 kB for a thousand rows of a kilobyte: a sample knows better."""
    rows = table(10_000, text="x" * 1000)
    if coded:  # the file remembers that its writer had a dictionary
        rows = rows.set_column(1, "name", rows.column("name").combine_chunks().dictionary_encode())
    put(tmp_path / "a.parquet", rows, group=10_000)
    facts = probe(tmp_path)("a.parquet")
    meta = pq.read_metadata(tmp_path / "a.parquet")
    assert meta.row_group(0).total_byte_size < 500_000
    assert 9_000_000 < facts.bytes < 13_000_000
    assert facts.rows == 10_000


@pytest.mark.parametrize(
    ("schema", "column", "cut"),
    [
        ("id bigint", pa.array([1, 2], pa.int64()), True),
        ("id bigint not null", pa.array([1, 2], pa.int64()), True),
        ("id bigint", pa.array([1, 2], pa.int32()), False),
        ("id decimal(9,2)", pa.array([1, 2], pa.decimal128(9, 2)), True),
        ("id decimal(9,2)", pa.array([1, 2], pa.decimal128(9, 3)), False),
        ("id timestamp", pa.array([1, 2], pa.timestamp("us", tz="UTC")), True),
        ("id timestamp", pa.array([1, 2], pa.timestamp("ns", tz="UTC")), False),
        ("id timestamp", pa.array([-(10**16), 2], pa.timestamp("us", tz="UTC")), False),
        ("id timestamp_ntz", pa.array([1, None], pa.timestamp("us")), True),
        ("id date", pa.array([1, -200_000], pa.date32()), False),
        ("id date", pa.array([1, None], pa.date32()), True),
        ("id string", pa.array(["a", "b"]).dictionary_encode(), True),
        ("id array<int>", pa.array([[1], [2]]), False),
        ("ID bigint", pa.array([1, 2], pa.int64()), False),
    ],
)
def test_files_are_cut_only_where_both_readers_agree(tmp_path, schema, column, cut) -> None:
    """Types that are widened, rebased or nested leave the file to Spark, as a whole."""
    put(tmp_path / "a.parquet", pa.table({"id": column}))
    assert (probe(tmp_path, schema)("a.parquet").bounds is not None) == cut


def test_files_that_cannot_be_looked_at_count_by_their_size(tmp_path) -> None:
    """Spark says what is wrong with them; here nothing fails."""
    (tmp_path / "a.parquet").write_bytes(b"no footer" * 100)
    facts = probe(tmp_path)("a.parquet")
    assert (facts.rows, facts.bytes, facts.bounds) == (None, 3600, None)


@pytest.mark.parametrize("packed", [False, True])
def test_text_files_are_estimated_by_a_sample(tmp_path, packed) -> None:
    """Also through compression, within a fifth."""
    text = "".join(f"{n},customer {n % 97}\n" for n in range(100_000)).encode()
    name = "a.csv.gz" if packed else "a.csv"
    (tmp_path / name).write_bytes(gzip.compress(text) if packed else text)
    facts = probe(tmp_path, format="csv")(name)
    assert 0.8 < facts.rows / 100_000 < 1.3
    assert 0.8 < facts.bytes / (len(text) + 800_000) < 1.3


def test_schemas_that_both_readers_know() -> None:
    """One column that may differ leaves all of the file to Spark."""
    assert same_types("`a``b` string, c: timestamp") == {
        "a`b": "string",
        "c": "timestamp[us, tz=UTC]",
    }
    assert same_types("a string, b struct<x int>") is None


@given(st.integers(1, 300), st.integers(1, 90), st.integers(1, 5), st.data())
def test_ranges_give_every_row_once(tmp_path_factory, rows, group, tasks, data) -> None:
    """However they are cut, and whatever number of tasks reads them."""
    root = tmp_path_factory.mktemp("ranges")
    put(root / "a.parquet", table(rows), group=group)
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    facts = probe(root)("a.parquet")
    entry = Entry("a.parquet", (root / "a.parquet").stat().st_size)
    ranges = ranges_of([FilePiece(entry, facts, start, stop)], tasks)
    schema = pa.schema([("name", pa.string()), ("id", pa.int64())])
    reader = RangeReader(StorageLocation(str(root)), str(root), schema, ranges)
    numbers = pa.RecordBatch.from_pydict({"id": list(range(len(ranges)))})
    batches = list(reader([numbers]))
    assert [n for batch in batches for n in batch.column("id").to_pylist()] == [*range(start, stop)]
