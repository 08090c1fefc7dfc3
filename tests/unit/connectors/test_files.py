"""The files source without Spark: listing, formats, the log of read files, cleaning up."""

from __future__ import annotations

import os
import time

import pytest

from holdfast.clock import ManualClock
from holdfast.connectors.files.file_log import FileLog, Seen, content_digest
from holdfast.connectors.files.formats import format_of
from holdfast.connectors.files.frames import escaped, partition_columns
from holdfast.connectors.files.listing import is_hidden
from holdfast.errors import HoldfastError, InvalidInputError, NotFoundError
from holdfast.format.position import FilesPosition
from holdfast.sources import Files


def put(path, data=b"x", age_s: float = 60.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    stamp = time.time() - age_s
    os.utime(path, (stamp, stamp))


def source(home, **more):
    return Files(home, schema="x long", format=more.pop("format", "csv"), **more)


def names(pieces: list[list[str]]) -> list[str]:
    return [name for piece in pieces for name in piece]


def drain(reader) -> list[list[str]]:
    found = []
    while (piece := reader.plan()) is not None:
        found.append([entry.path for entry in piece.detail])
        reader.advance(piece)
    return found


class Drafts:
    """A draft that only keeps the log."""

    def __init__(self) -> None:
        self.data = b""

    def put_offsets(self, name: str, data: bytes) -> str:
        self.data = data
        return f"log-{name}"


class Stored:
    """A checkpoint with one position, for `restore`."""

    def __init__(self, position: FilesPosition, data: bytes) -> None:
        from types import SimpleNamespace

        from holdfast.format.canonical import sha256_hex

        self.position, self.files, self.format = position, [], 2
        if position.log:
            self.files = [SimpleNamespace(path=position.log, sha256=sha256_hex(data))]
        storage = SimpleNamespace(get=lambda path, bytes_max: data)
        self.directory = SimpleNamespace(storage=storage, file=lambda file: file.path)

    def source(self, name: str):
        del name
        return self


def reopened(files: Files, reader):
    """A new reader that begins where the other one stands."""
    draft = Drafts()
    stored = Stored(reader.save(draft), draft.data)
    again = files.open("s")
    again.restore(stored, stored)
    return again


def test_formats_come_from_extensions_and_through_compressions() -> None:
    """A name says the format, whatever compressed it; a name without one says nothing."""
    told = {
        "a.parquet": "parquet", "a.snappy.parquet": "parquet", "a.JSON": "json",
        "a.json.gz": "json", "a.jsonl": "json", "a.ndjson.zst": "json", "d/a.csv.bz2": "csv",
        "notes.txt": None, "part-0": None, "a.gz": None, "csv": None,
    }  # fmt: skip
    assert {name: format_of(name) for name in told} == told


@pytest.mark.parametrize(
    ("names", "kind"),
    [(["a.parquet", "b.csv"], "mixed_formats"), (["a.csv", "notes.txt"], "unknown_extension")],
)
def test_a_directory_that_does_not_fit_is_refused_before_spark(tmp_path, names, kind) -> None:
    """Two formats, or a name that says none: the file is named, `pattern` is the way out."""
    for name in names:
        put(tmp_path / name)
    with pytest.raises(InvalidInputError) as caught:
        source(tmp_path, format=None).open("s").check()
    assert caught.value.kind == kind
    assert caught.value.facts["source"] == "s"
    source(tmp_path, format=None, pattern=f"*{names[0][1:]}").open("s").check()


def test_a_missing_directory_names_its_source(tmp_path) -> None:
    """It is found when the source is opened, before anything else."""
    with pytest.raises(NotFoundError) as caught:
        source(tmp_path / "none").open("orders")
    assert caught.value.facts["source"] == "orders"


@pytest.mark.parametrize(
    ("options", "word"),
    [({"headr": True}, "headr"), ({"basePath": "/"}, "basePath"), ({"sep": ["a"]}, "sep"),
     ({"ignoreCorruptFiles": True}, "ignoreCorruptFiles")],
)  # fmt: skip
def test_options_that_spark_would_ignore_are_refused(tmp_path, options, word) -> None:
    """A misspelled option, one that is the source's own, or one that hides rows."""
    with pytest.raises(InvalidInputError) as caught:
        source(tmp_path, options=options)
    assert (caught.value.kind, caught.value.facts["option"]) == ("invalid_option", word)
    assert source(tmp_path, options={"header": True}).options == {"header": "true"}


def test_hidden_names_are_sparks() -> None:
    """`.x`, `_x` and copies under way are hidden; `_x=1` is a partition."""
    assert [n for n in (".a", "_a", "d/_b/c", "a._COPYING_") if not is_hidden(n)] == []
    assert not any(map(is_hidden, ("_day=1/a", "a_b", "a.b", "a=_b")))


def test_patterns_are_escaped_and_directories_name_columns() -> None:
    """Every character that a pattern could use is taken literally."""
    assert escaped("a*?[b]{c}\\d:e,f") == "a\\*\\?\\[b\\]\\{c\\}\\\\d:e,f"
    assert partition_columns("day=1/hour=2=3/x=9.csv") == ("day", "hour")


def test_a_schema_may_be_a_struct_type(tmp_path) -> None:
    """Names are quoted where they must be; no Spark is started for it."""
    from pyspark.sql import types as T

    inner = T.StructType([T.StructField("b c", T.ArrayType(T.LongType()))])
    schema = T.StructType([T.StructField("a", T.StringType()), T.StructField("s", inner)])
    made = Files(tmp_path, schema=schema)
    assert made.schema_text == "a string, s struct<`b c`: array<bigint>>"
    assert made.columns() == ["a", "s"]
    with pytest.raises(InvalidInputError):
        Files(tmp_path, schema=3)


def test_each_file_once_oldest_first_and_again_after_a_restart(tmp_path) -> None:
    """Limits cut epochs; a reader that goes on from the saved position reads nothing twice."""
    for number in range(5):
        put(tmp_path / f"{number}.csv", age_s=100 - number)
    files = source(tmp_path, files_max=2)
    reader = files.open("s")
    assert drain(reader) == [["0.csv", "1.csv"], ["2.csv", "3.csv"], ["4.csv"]]
    put(tmp_path / "d" / "new.csv")
    assert drain(reopened(files, reader)) == [["d/new.csv"]]


def test_the_same_bytes_with_a_new_time_are_the_same_file(tmp_path) -> None:
    """A touch, a copy or a restored backup is noticed and accepted; other bytes are refused."""
    put(tmp_path / "a.csv", b"1\n")
    files = source(tmp_path)
    reader = files.open("s")
    drain(reader)
    os.utime(tmp_path / "a.csv")
    assert drain(reopened(files, reader)) == []
    put(tmp_path / "a.csv", b"2\n", age_s=10)
    with pytest.raises(InvalidInputError) as caught:
        drain(reopened(files, reader))
    assert caught.value.kind == "file_changed"
    assert "modified_now_us" in caught.value.facts
    keeps = source(tmp_path, on_change="keep")
    assert drain(reopened(keeps, reader)) == []


def test_a_large_file_is_known_by_its_blocks(tmp_path) -> None:
    """One byte at the end or at the beginning of a large file makes another digest."""
    size = 5_000_000
    digests = set()
    for data in (b"0" * size, b"1" + b"0" * (size - 1), b"0" * (size - 1) + b"1"):
        (tmp_path / "a").write_bytes(data)
        digests.add(content_digest(str(tmp_path / "a"), size))
    assert len(digests) == 3


def test_a_file_that_changes_while_it_is_read_fails_its_epoch(tmp_path) -> None:
    """Half a file is never committed."""
    put(tmp_path / "a.csv", b"1\n")
    reader = source(tmp_path).open("s")
    piece = reader.plan()
    put(tmp_path / "a.csv", b"1\n2\n", age_s=30)
    with pytest.raises(InvalidInputError) as caught:
        reader.advance(piece)
    assert caught.value.kind == "file_changed"


def test_a_young_file_waits_until_it_is_quiet(tmp_path) -> None:
    """Not read while it is written; a time in the future does not hide it for ever."""
    put(tmp_path / "a.csv", age_s=0)
    began = time.monotonic()
    assert drain(source(tmp_path).open("s")) == [["a.csv"]]
    assert time.monotonic() - began > 0.15
    put(tmp_path / "b.csv", age_s=-3_600)
    assert names(drain(source(tmp_path).open("s"))) == ["a.csv", "b.csv"]
    far = source(tmp_path, min_age_ms=5_000)
    put(tmp_path / "c.csv", age_s=1)
    assert "c.csv" not in names(drain(far.open("s")))


def test_names_that_are_no_text_do_not_hold_up_the_others(tmp_path) -> None:
    """All other files are read first; then the error names the file."""
    put(tmp_path / "a.csv")
    (tmp_path / os.fsdecode(b"bad\xff.csv")).write_bytes(b"1")
    os.utime(tmp_path / os.fsdecode(b"bad\xff.csv"), (1, 1))
    reader = source(tmp_path).open("s")
    piece = reader.plan()
    assert [entry.path for entry in piece.detail] == ["a.csv"]
    reader.advance(piece)
    with pytest.raises(InvalidInputError) as caught:
        reader.plan()
    assert caught.value.kind == "unreadable_name"
    assert "bad\\xff" in caught.value.facts["path"]


def test_a_file_that_vanished_is_not_planned(tmp_path) -> None:
    """It is looked at once more before its epoch begins."""
    for name in ("a.csv", "b.csv"):
        put(tmp_path / name)
    reader = source(tmp_path, files_max=1).open("s")
    reader.advance(reader.plan())
    (tmp_path / "b.csv").unlink()
    assert reader.plan() is None


def test_read_files_are_archived_or_deleted_behind_the_floor(tmp_path) -> None:
    """Only what the oldest checkpoint has behind it; again changes nothing; the log shrinks."""
    archive = tmp_path / "archive"
    files = source(tmp_path / "in", files_max=1, after_read="archive", archive=archive)
    for number in range(3):
        put(tmp_path / "in" / "d" / f"{number}.csv", b"%d" % number, age_s=100 - number)
    reader = files.open("s")
    drain(reader)
    for _ in range(2):
        reader.committed(None, FilesPosition(files=2))
        assert sorted(p.name for p in archive.rglob("*.csv")) == ["0.csv", "1.csv"]
    assert [p.name for p in (tmp_path / "in").rglob("*.csv")] == ["2.csv"]
    position = reader.save(Drafts())
    assert (position.files, position.forgotten, len(position.recent)) == (3, 2, 1)
    again = reopened(files, reader)
    assert drain(again) == []
    with pytest.raises(InvalidInputError) as caught:
        again.history()
    assert caught.value.kind == "history_lost"


def test_a_changed_file_is_never_deleted_and_failures_are_tried_again(tmp_path) -> None:
    """Bytes that nobody has read stay; a file that cannot go now goes later."""
    files = source(tmp_path / "in", after_read="delete")
    for name in ("a.csv", "b.csv"):
        put(tmp_path / "in" / name)
    reader = files.open("s")
    drain(reader)
    put(tmp_path / "in" / "a.csv", b"other bytes")
    reader.committed(None, FilesPosition(files=2))
    assert sorted(os.listdir(tmp_path / "in")) == ["a.csv"]
    assert reader.save(Drafts()).forgotten == 0, "only a prefix is forgotten"


@pytest.mark.parametrize("archive", ["in", "in/archive"])
def test_an_archive_inside_the_source_is_refused(tmp_path, archive) -> None:
    """Unless it is hidden, it would be read again."""
    with pytest.raises(InvalidInputError):
        source(tmp_path / "in", after_read="archive", archive=tmp_path / archive)
    source(tmp_path / "in", after_read="archive", archive=tmp_path / "in" / "_archive")


def test_ordered_names_keep_only_the_last_ones(tmp_path) -> None:
    """2,000 files leave 500 names; a later name is read, also one between the last ones."""
    log = FileLog("s", ordered=True, forget_us=None, cleans=False)
    for number in range(2_000):
        log.add(Seen(f"{number:06d}.csv", 1, number))
    log.trim(0)
    assert (log.files, log.forgotten, len(log.order)) == (2_000, 1_500, 500)
    assert log.knows("000000.csv")
    assert log.knows("001999.csv")
    assert not log.knows("001999a.csv")
    assert not log.knows("001800a.csv")
    position = log.save(Drafts())
    assert len(position.recent) == 500
    stored = Stored(position, b"")
    again = FileLog("s", ordered=True, forget_us=None, cleans=False)
    again.restore(stored, stored)
    assert (again.files, again.after, again.knows("001800a.csv")) == (2_000, "001499.csv", False)


def test_old_files_are_forgotten_behind_a_bound(tmp_path) -> None:
    """The bound lies behind the newest file read, never behind the clock, and does not go back."""
    day = 86_400_000_000
    log = FileLog("s", ordered=False, forget_us=2 * day, cleans=False)
    for number in range(10):
        log.add(Seen(f"{number}.csv", 1, number * day))
    log.trim(0)
    assert [seen.path for seen in log.order] == ["7.csv", "8.csv", "9.csv"]
    from holdfast.storage import Entry

    assert log.old(Entry("3.csv", 1, 3 * day))
    assert not log.old(Entry("new.csv", 1, 8 * day))


def test_the_log_is_written_again_when_it_grew_or_shrank(tmp_path) -> None:
    """Thousands of files lie in one file; after a clean-up its rest is all that is left."""
    log = FileLog("s", ordered=False, forget_us=None, cleans=True)
    for number in range(5_000):
        log.add(Seen(f"{number}.csv", 1, number))
    draft = Drafts()
    position = log.save(draft)
    assert (position.log, len(position.recent)) == ("log-s", 0)
    full = len(draft.data)
    log.trim(4_900)
    position = log.save(draft)
    assert position.forgotten == 4_900
    assert len(draft.data) < full / 10
    stored = Stored(position, draft.data)
    again = FileLog("s", ordered=False, forget_us=None, cleans=True)
    again.restore(stored, stored)
    assert [seen.path for seen in again.order] == [f"{n}.csv" for n in range(4_900, 5_000)]


def test_a_log_that_lost_entries_is_refused() -> None:
    """The count of files is compared with what is listed and what was forgotten."""
    stored = Stored(FilesPosition(files=3, recent=['["a",1,1]']), b"")
    log = FileLog("s", ordered=False, forget_us=None, cleans=False)
    with pytest.raises(HoldfastError) as caught:
        log.restore(stored, stored)
    assert caught.value.kind == "file_log_differs"


def test_an_unchanged_directory_is_not_listed_again(tmp_path, monkeypatch) -> None:
    """A look at 300 known files costs no listing and no question about any of them."""
    for number in range(300):
        put(tmp_path / "d" / f"{number}.csv")
    for directory in (tmp_path, tmp_path / "d"):
        os.utime(directory, (1, 1))
    clock = ManualClock()
    reader = source(tmp_path, clock=clock, min_age_ms=0).open("s")
    drain(reader)
    reader.plan()
    scans = []
    monkeypatch.setattr(os, "scandir", scans.append)
    assert reader.plan() is None
    assert scans == []


def test_an_object_store_is_listed_from_the_last_forgotten_name() -> None:
    """With names that ascend, what lies before is not even listed; strange names are listed."""
    obstore = pytest.importorskip("obstore", reason="the object extra is not installed")
    from holdfast.connectors.files.listing import Lister
    from holdfast.storage.object_store import ObjectStorage

    store = obstore.store.MemoryStore()
    odd = ["d/a*b.csv", "d/a[1].csv", "d/a{x,y}.csv", "d/a:b.csv", "d/a b.csv", "d/ä.csv"]
    for name in ["a.csv", "b.csv", "_hidden/c.csv", *odd]:
        obstore.put(store, name, b"1\n")
    storage = ObjectStorage(store, "memory")
    log = FileLog("s", ordered=True, forget_us=None, cleans=False)
    lister = Lister(storage, root=None, pattern=None, min_age_ms=0, clock=ManualClock())
    found = [entry.path for entry in lister.look(log, check=None).ready]
    assert found == sorted(["a.csv", "b.csv", *odd])
    log.after = "b.csv"
    listed = []
    whole = storage.list_after
    storage.list_after = lambda path: (listed.append(path) or e for e in whole(path))  # type: ignore[method-assign]
    assert {e.path for e in lister.look(log, check=None, after=log.after).ready} == set(odd)
    assert all(entry.tag for entry in storage.list("")), "the store's tag is the digest"
