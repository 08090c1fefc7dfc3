"""What a start decides about an output: every combination of record, content and history."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.checkpoint import PendingToken
from holdfast.connectors.base import OutputState, StagedFile, token_text
from holdfast.connectors.locations import identity
from holdfast.errors import CorruptionError, HoldfastError, RefusedError
from holdfast.format.owner import Owner, new_owner, owner_bytes, parse_owner
from holdfast.ids import Epoch, SeededIds
from holdfast.runtime.locations import check_locations
from holdfast.runtime.outputs import History, decide, published_text
from holdfast.storage import open_storage
from holdfast.storage.open import StorageLocation

HISTORY = History(
    "L",
    "p",
    epoch=7,
    checkpoint="c7",
    epoch_next=12,
    chain={5: "c5", 6: "c6", 7: "c7"},
    known=frozenset(["c5", "c6", "c7", "c9"]),
    published={"s": 6},
)


def owner(**fields) -> Owner:
    fields = {"epoch": 6, "checkpoint": "c6", **fields}
    return msgspec.structs.replace(new_owner("L", "p", "s"), **fields)


def found(record: Owner | None = None, epochs=(5, 6), **fields) -> OutputState:
    return OutputState("out", owner=record, epochs=epochs, empty=not epochs, **fields)


def verdict(seen: OutputState, history: History = HISTORY, **wishes) -> str:
    """The action, or the kind of the refusal."""
    try:
        return decide("s", seen, history, **wishes).action
    except RefusedError as error:
        assert error.remedy and "adopt" in error.remedy and "path" in error.remedy
        return error.kind


CASES = [
    ("it stands where the store stands", found(owner()), {}, "continue"),
    ("published, but the record was not written yet", found(owner(epoch=5, checkpoint="c5"),
     (5, 6)), {"published": {"s": 5}}, "continue"),
    ("older than what was published", found(owner(epoch=5, checkpoint="c5"), (5,)), {}, "rebuild"),
    ("older, and nobody knows from when", found(owner(epoch=2, checkpoint="c2"), (2,)), {},
     "output_behind"),
    ("claimed and never written", found(owner(epoch=-1, checkpoint=""), ()), {}, "rebuild"),
    ("no rows for a long time", found(owner(epoch=2, checkpoint="c2"), (2,)),
     {"published": {}}, "continue"),
    ("parts are gone", found(owner(), whole=False), {}, "rebuild"),
    ("left behind by a restore", found(owner(epoch=9, checkpoint="c9"), (5, 9)), {}, "retract"),
    ("left behind, and collected since", found(owner(epoch=10, checkpoint="c10"), (10,)), {},
     "retract"),
    ("it cannot go back by itself", found(owner(epoch=9, checkpoint="c9"), (9,),
     retractable=False), {}, "rebuild"),
    ("nothing was published before the epoch that it goes back to", found(owner(epoch=9,
     checkpoint="c9"), (9,), retractable=False), {"published": {"s": -1}}, "empty"),
    ("the same, but an epoch waits to be published", found(owner(epoch=9, checkpoint="c9"), (9,),
     retractable=False), {"published": {"s": -1}, "waiting": {"s": 7}}, "rebuild"),
    ("the same in a place that others share", found(owner(epoch=9, checkpoint="c9"), (9,),
     retractable=False, shared=True), {"published": {"s": -1}}, "rebuild"),
    ("nobody knows what was published before", found(owner(epoch=9, checkpoint="c9"), (9,),
     retractable=False), {"published": {}}, "rebuild"),
    ("rebuilt after the epoch that it goes back to", found(owner(epoch=9, checkpoint="c9",
     since=8), (8, 9)), {}, "rebuild"),
    ("rebuilt before the epoch that it goes back to", found(owner(epoch=9, checkpoint="c9",
     since=6), (6, 9)), {}, "retract"),
    ("an epoch that was never given out", found(owner(epoch=12, checkpoint="x"), (12,)), {},
     "output_ahead"),
    ("another checkpoint of one epoch", found(owner(epoch=6, checkpoint="x")), {},
     "output_diverged"),
    ("rows ahead of the record", found(owner(), (5, 6, 9)), {}, "retract"),
    ("a rebuild that was interrupted", found(owner(building=True)), {}, "rebuild"),
    ("a rebuild that waits to be published", found(owner(building=True, epoch=6)),
     {"waiting": {"s": 7}}, "finish"),
    ("older tokens wait in a rebuild", found(owner(building=True, epoch=7)),
     {"waiting": {"s": 7}}, "rebuild"),
    ("another lineage", found(owner(lineage="other")), {}, "output_owned"),
    ("another pipeline", found(owner(pipeline="q")), {}, "output_owned"),
    ("another sink", found(owner(sink="t")), {}, "output_owned"),
    ("missing", found(None, ()), {}, "rebuild"),
    ("without a record, and unlike what was published", found(None, fits=False), {},
     "output_unknown"),
    ("without a record, and nothing to compare", found(None), {}, "output_unknown"),
    ("written by the version before", found(None, fits=True), {}, "claim"),
    ("the record is gone, the rows are not", found(None, fits=True),
     {"owned": frozenset(["s"])}, "output_unknown"),
    ("a journal of others", found(owner(epoch=5, checkpoint="c5"), (), shared=True),
     {}, "rebuild"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "seen", "facts", "expected"), CASES, ids=lambda v: str(v)[:40])
def test_every_state_of_an_output_has_one_answer(name, seen, facts, expected) -> None:
    """Continue, go back, rebuild or refuse, by the record, the rows and the history."""
    assert verdict(seen, changed(HISTORY, facts)) == expected, name


def changed(history: History, facts: dict) -> History:
    return replace(history, **facts)


def test_a_shared_output_is_never_rebuilt_over_rows_of_others() -> None:
    """A journal that is behind is refused; an empty one is filled."""
    behind = OutputState("j", owner=owner(epoch=5, checkpoint="c5"), empty=False, shared=True)
    assert verdict(behind) == "output_behind"
    assert verdict(behind, wish="adopt") == "claim"
    foreign = OutputState("j", owner=owner(lineage="other"), empty=False, shared=True)
    assert verdict(foreign, wish="adopt") == "claim"
    assert verdict(OutputState("j", empty=True, shared=True)) == "rebuild"


def test_a_first_run_claims_what_is_empty_and_nothing_else() -> None:
    """Rows that are there before the first checkpoint are somebody's."""
    fresh = History("L", "p")
    assert verdict(found(None, ()), fresh) == "claim"
    assert verdict(found(None), fresh) == "output_not_empty"
    assert verdict(found(owner(lineage="other"), ()), fresh) == "output_owned"
    assert verdict(found(None, (3,)), new=True) == "output_not_empty"
    assert verdict(found(owner()), new=True) == "rebuild"
    assert verdict(OutputState("j", empty=False, shared=True), fresh) == "claim"


def test_wishes_are_followed_by_name_only() -> None:
    """Adopt rebuilds, keep takes over as it is, empty begins empty; a soft loss is told apart."""
    foreign = found(owner(lineage="other"))
    assert verdict(foreign, wish="adopt") == "rebuild"
    assert verdict(foreign, wish="keep") == "claim"
    assert verdict(foreign, wish="empty") == "empty"
    assert verdict(found(None, ()), wish="empty") == "empty"
    assert verdict(found(owner()), wish="empty") == "continue"
    assert verdict(found(None), wish="keep") == "claim"
    assert verdict(found(owner(epoch=12, checkpoint="x"), (12,)), wish="keep") == "retract"
    bare = History("L", "p", epoch=7, checkpoint="c7", epoch_next=8, chain={7: "c7"})
    assert decide("s", found(None, ()), bare).soft
    assert not decide("s", found(None, ()), HISTORY).soft
    forked = changed(bare, {"forked": True})
    assert not decide("s", found(None, ()), forked).soft


def test_an_owner_record_is_sealed(tmp_path) -> None:
    """A flipped byte is corruption, with a remedy; never another owner."""
    data = owner_bytes(owner(folds=[(1, 4)]))
    assert parse_owner(data, "x").folds == [(1, 4)]
    for at in range(len(data)):
        with pytest.raises(HoldfastError):
            parse_owner(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "_holdfast.json").write_bytes(data[:-2])
    with pytest.raises(CorruptionError) as caught:
        hf.sinks.Parquet(str(tmp_path / "out")).open("s", "p", None, None).inspect(None)
    assert "adopt" in caught.value.remedy


def test_one_place_has_one_identity(tmp_path, monkeypatch) -> None:
    """Relative, with slashes, through links, as a file address, with and without its own link."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "l").symlink_to("a")
    names = ["a/b", "a/b/", "./a/../a//b", "l/b", f"file://{tmp_path}/a/b", str(tmp_path / "a/b")]
    assert len({identity(name) for name in names}) == 1
    (tmp_path / ".o.versions" / "1").mkdir(parents=True)
    before = identity("o")
    (tmp_path / "o").symlink_to(".o.versions/1")
    assert identity("o") == before == f"{Path(os.path.realpath(tmp_path))}/o/"
    assert identity("s3a://b/x/") == identity("s3://b//x")
    assert identity("a/bc") != identity("a/b") and not identity("a/bc").startswith(identity("a/b"))


def test_a_journal_has_one_owner_for_each_sink(tmp_path) -> None:
    """Several sinks append to one journal; one name in it belongs to one pipeline."""
    place = StorageLocation(str(tmp_path / "store"))
    sink = hf.sinks.Journal(tmp_path / "j", entity="=e", kind="=k")
    writers = {name: sink.open(name, "p", place, None) for name in ("a", "b")}
    for name, writer in writers.items():
        seen = writer.inspect(None)
        assert seen.owner is None and seen.empty == (name == "a") and seen.shared
        writer.claim(new_owner("L", "p", name))
        token = staged(writer, place, 1)
        writer.commit(token)
        writer.commit(token)
        assert writer.extent()[0] == 1
    other = sink.open("a", "q", place, None).inspect(None)
    with pytest.raises(RefusedError) as caught:
        decide("a", other, History("other", "q"))
    assert caught.value.kind == "output_owned"
    assert sink.open("c", "q", place, None).inspect(None).owner is None
    from holdfast.journal import JournalReader

    with JournalReader(tmp_path / "j") as journal:
        assert len(journal.view()) == 4


def staged(writer, place: StorageLocation, epoch: int, rows=({"x": 1}, {"x": 2})) -> PendingToken:
    """Stage rows as a task would."""
    checkpoint = SeededIds(epoch).checkpoint_id(0)
    _, directory = writer.staging(checkpoint)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows)), sink)
    data = sink.getvalue().to_pybytes()
    open_storage(place.url).put(f"{directory}/part-0.parquet", data)
    text = token_text(directory, [StagedFile("s", f"{directory}/part-0.parquet", len(data), "", 2)])
    return PendingToken(checkpoint, Epoch(epoch), "s", text, "retracts", "pending")


@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_an_upsert_output_is_replaced_from_scratch(tmp_path, request, kind) -> None:
    """After a rebuild only the new rows are there, however often it is repeated."""
    place = StorageLocation(str(tmp_path / "store"))
    url, options = str(tmp_path / "out"), None
    if kind == "s3":
        url, options = request.getfixturevalue("s3_url"), request.getfixturevalue("s3_options")
    sink = hf.sinks.Parquet(url, mode="upsert", storage_options=options)
    writer = sink.open("s", "p", place, None)
    writer.inspect(None)
    writer.claim(new_owner("L", "p", "s"))
    for epoch in range(1, 4):
        writer.commit(staged(writer, place, epoch, [{"x": n} for n in range(epoch * 9)]))
    again = staged(writer, place, 5, [{"x": 77}])
    for _ in range(2):
        writer.replace(again)
    parts, version = writer.extent()
    assert (parts, version) == ((1 if kind == "s3" else len(os.listdir(url))), 5)
    assert read(url, options) == [77]
    record = writer.claim(owner(epoch=5, checkpoint="c5", parts=parts, version=version))
    seen = sink.open("s", "p", place, None).inspect(5)
    assert seen.owner == record and seen.whole and seen.retractable and seen.epochs == (5,)
    assert not sink.open("s", "p", place, None).inspect(3).retractable
    writer.clear()
    assert not sink.open("s", "p", place, None).inspect(5).whole
    assert read(url, options) == []


def read(url: str, options) -> list[int]:
    """The rows of an output, without names that begin with an underscore."""
    if options is None and not os.path.exists(url):
        return []
    storage = open_storage(url, options=options)
    names = [entry.path for entry in storage.list("") if entry.path.startswith("part-")]
    tables = [pq.read_table(pa.BufferReader(storage.get(name))) for name in names]
    return sorted(x for table in tables for x in table["x"].to_pylist())


def test_outputs_that_share_a_place_are_refused_however_it_is_spelled(tmp_path) -> None:
    """Two sinks, a sink in a source, a sink in the store: refused before anything is made."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    real = str(tmp_path / "real")

    def pipe(one: str, other: str, mode="changelog") -> hf.Pipeline:
        made = hf.Pipeline("p", store=tmp_path / "cp")
        source = made.source("s", hf.sources.Files(str(tmp_path / "in"), schema="x long"))
        made.sink("one", source, hf.sinks.Parquet(one))
        made.sink("two", source, hf.sinks.Parquet(other, mode=mode))
        return made

    shared = [
        (real, real),
        (real, real + "/"),
        (real, f"file://{real}"),
        (real, f"{tmp_path}/link"),
        (real, f"{real}/inner"),
        (f"{real}/a/b", f"{real}/a"),
        (real, os.path.relpath(real)),
        (real, f"{tmp_path}/in/out"),
        (real, f"{tmp_path}/cp/out"),
        (real, str(tmp_path)),
        (f"{tmp_path}/in", real),
        (f"{tmp_path}/cp", real),
        ("s3://b/x", "s3a://b/x/"),
    ]
    for one, other in shared:
        for mode in ("changelog", "upsert"):
            with pytest.raises(HoldfastError) as caught:
                pipe(one, other, mode).run()
            assert caught.value.kind == "output_shared", (one, other)
    assert not (tmp_path / "cp").exists() and not os.listdir(real)
    graph = pipe(real, f"{real}2")
    check_locations(graph._graph, str(tmp_path / "cp"))
    journal = hf.sinks.Journal(tmp_path / "j", entity="=e", kind="=k")
    both = hf.Pipeline("p", store=tmp_path / "cp")
    source = both.source("s", hf.sources.Files(str(tmp_path / "in"), schema="x long"))
    both.sink("one", source, journal)
    both.sink("two", source, journal)
    check_locations(both._graph, str(tmp_path / "cp"))


def test_a_source_that_moves_or_deletes_files_shares_them_with_nobody(tmp_path) -> None:
    """Another source would miss rows, and an archive in a place that is read brings them twice."""
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "in")

    def kind(first: dict, second: dict, path="in", store="cp") -> str | None:
        made = hf.Pipeline("p", store=tmp_path / store)
        one = hf.sources.Files(str(tmp_path / "in"), schema="x long", **first)
        two = hf.sources.Files(str(tmp_path / path), schema="x long", **second)
        made.sink("a", made.source("one", one), hf.sinks.Parquet(str(tmp_path / "a")))
        made.sink("b", made.source("two", two), hf.sinks.Parquet(str(tmp_path / "b")))
        try:
            check_locations(made._graph, str(tmp_path / store))
        except HoldfastError as error:
            assert error.remedy and error.facts["source"]
            return error.kind
        return None

    deletes = {"after_read": "delete"}
    assert kind({}, {}) is None
    for path in ("in", "in/deep", "link"):
        assert kind(deletes, {}, path) == kind({}, deletes, path) == "source_shared"
    assert kind(deletes, {}, "elsewhere") is None
    csv, texts = {"pattern": "*.csv"}, {"pattern": "*.json"}
    assert kind({**deletes, **csv}, texts) is None
    assert kind({**deletes, **csv}, {"pattern": "a*"}) == "source_shared"
    assert kind({**deletes, **csv}, {"pattern": "a*.csv"}) == "source_shared"

    def archived(where: str) -> str | None:
        return kind({"after_read": "archive", "archive": str(tmp_path / where)}, {}, "elsewhere")

    assert archived("archive") is None and archived("in/.archive") is None
    for where in ("a", "b/x", "cp/x", "elsewhere", "elsewhere/x", "link/x"):
        assert archived(where) == "source_shared", where


def test_a_kept_or_strange_output_is_not_filled_or_mixed() -> None:
    """New sinks: kept as it is, begins empty, or is refused among the files of others."""
    assert verdict(found(owner()), new=True, wish="keep") == "claim"
    assert verdict(found(owner(epoch=9, checkpoint="c9"), (9,)), new=True, wish="keep") == "retract"
    assert verdict(found(None, ()), new=True, wish="keep") == "rebuild"
    assert verdict(found(owner()), new=True, wish="empty") == "empty"
    for wish in ("adopt", "empty"):
        strange = replace(found(None, ()), empty=False, strange=True)
        assert verdict(strange, wish=wish) == "output_not_empty"
        assert verdict(strange, History("L", "p"), wish=wish) == "output_not_empty"
        assert verdict(replace(found(owner()), strange=True), wish=wish) != "output_not_empty"
    journal = OutputState("j", empty=False, shared=True)
    assert verdict(journal, new=True, wish="adopt") == "rebuild"
    assert verdict(journal, new=True, wish="keep") == "claim"


def test_the_property_of_a_manifest_tells_the_newest_published_epochs() -> None:
    """Also where it is full, or was written by a version that did not tell."""
    owners = {
        "a": owner(epoch=7, parts=3),
        "b": owner(epoch=-1),
        "c": owner(epoch=4, version=4),
        "d": owner(epoch=5, parts=1, building=True),
        "e": owner(epoch=5),
    }
    assert published_text(owners) == '{"a":7,"b":-1,"c":4,"e":-1}'
    assert published_text({f"sink-{n}": owner(epoch=n, parts=1) for n in range(200)}) == "1"
