"""Golden stores: what every version wrote is read for ever; the newest is written byte for byte."""

from __future__ import annotations

import importlib.util
import os
import shutil
import typing
from pathlib import Path

import pytest

import holdfast
from holdfast.format import documents as r
from holdfast.format import manifest as m
from holdfast.format import paths, position

HERE = Path(__file__).parent
VERSIONS = ("v1", "v2", "v2-whole-segments")  # the last: before segments named what has left them
NEWEST = HERE / "v2"


def _tool():
    spec = importlib.util.spec_from_file_location(
        "make_golden", HERE.parent.parent / "tools" / "make_golden.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _files(root):
    return {
        str((Path(directory) / name).relative_to(root)): (Path(directory) / name).read_bytes()
        for directory, _, names in os.walk(root)
        for name in names
    }


@pytest.fixture(params=VERSIONS)
def golden(request):
    """The stores of one version."""
    return HERE / request.param


@pytest.fixture
def copy(golden, tmp_path):
    """A copy that may be written to."""
    return Path(shutil.copytree(golden, tmp_path / golden.name))


def test_the_golden_stores_are_whole(golden):
    """Deep verification of the committed bytes finds nothing, in any pipeline."""
    for pipeline in holdfast.checkpoint.list_pipelines(golden):
        report = holdfast.checkpoint.verify_store(
            holdfast.checkpoint.read_store(golden, pipeline), deep=True
        )
        assert report.ok, [str(f) for f in report.all_findings()]
        assert report.all_findings() == []
        if pipeline == "golden":
            assert (report.checkpoints, report.files) == (
                4,
                {"v1": 22, "v2": 24}.get(golden.name, 27),
            )


def test_the_golden_store_is_listed(golden):
    """Epochs, labels, branches, savepoint and outcomes are as they were written."""
    reader = holdfast.checkpoint.read_store(golden, "golden")
    listed = reader.list()
    assert [(e.epoch, e.abandoned, e.label) for e in listed] == [
        (4, False, None), (3, True, None), (2, False, None), (1, False, "nightly"),
    ]  # fmt: skip
    pin = next(pin for pin in reader.pins() if pin.label == "gold")
    assert (pin.label, pin.epoch, pin.note) == ("gold", 2, "the good one")
    outcomes = reader.outcomes()
    assert outcomes.damage == ()
    by_epoch = {e.epoch: e.checkpoint for e in listed}
    assert outcomes.status(by_epoch[3], "lake") == "aborted"
    assert outcomes.status(by_epoch[2], "bus") == "committed"
    assert outcomes.status(by_epoch[4], "bus") == "pending"
    manifest = reader.manifest("gold")
    assert reader.small_state(manifest, "counter") == b"2"
    assert reader.small_state(manifest, "seen") == b"seen-2-" * 6
    assert manifest.source("orders").position.topics == {"orders": {"0": 20, "1": 21}}
    assert manifest.source("binlog").position.gtids[0].endswith(":1-7")
    assert manifest.operator("rates").position.partitions == {"version": 2}
    assert manifest.processed == 300
    assert manifest.properties == {"note": "golden ✓"}


def test_the_golden_store_is_restored_and_goes_on(copy):
    """A copy is opened for writing, its waiting token is rolled forward, and a commit follows."""
    tool = _tool()
    with holdfast.checkpoint.open_store(copy, "golden", topology=tool.TOPOLOGY) as store:
        assert store.current.epoch == 4
        assert [(t.sink, t.epoch) for t in store.recovery.roll_forward] == [("bus", 4)]
        assert store.epoch_next == 5
        tool.step(store, 5)
    assert holdfast.checkpoint.verify_store(
        holdfast.checkpoint.read_store(copy, "golden"), deep=True
    ).ok


def test_encoding_the_golden_documents_again_gives_the_same_bytes(golden):
    """Every document is decoded and encoded to exactly the bytes on disk, in its own format."""
    seen = set()
    for name, data in _files(golden).items():
        path = name.split("/", 1)[1]
        meaning = paths.classify(path)
        assert meaning is not None, name
        again = {
            "header": lambda d, p, _: r.header_bytes(r.parse_header(d, p)),
            "latest": lambda d, p, _: r.latest_bytes(r.parse_latest(d, p)),
            "record": lambda d, p, x: r.record_bytes(r.parse_record(d, p, x.sequence)),
            "pin": lambda d, p, x: r.pin_bytes(r.parse_pin(d, p, x.name)),
            "outcome": lambda d, p, x: r.outcome_bytes(
                r.parse_outcome(d, p, x.epoch, x.name, x.attempt)
            ),
            "segment": lambda d, p, _: m.segment_bytes(m.parse_segment(d, p)),
            "manifest": lambda d, p, x: m.manifest_bytes(m.parse_manifest(d, p, x.checkpoint)),
        }.get(meaning.kind)
        if again is not None:
            seen.add(meaning.kind)
            assert again(data, path, meaning) == data, name
            assert f'"format":{golden.name[1]},'.encode() in data
    kinds = {"header", "latest", "record", "pin", "outcome", "manifest"}
    assert seen == kinds | ({"segment"} if golden.name[1] == "2" else set())


def test_the_golden_store_holds_every_kind_of_record(golden):
    """Open, commit, drop and base records, a rollback among them."""
    kinds, abandoned = set(), []
    for name, data in _files(golden / "golden" / "catalog").items():
        body = r.parse_record(data, name, int(name.split(".")[0])).body
        kinds.add(type(body).__name__)
        abandoned += getattr(body, "abandoned", [])
    assert kinds == {"OpenBody", "CommitBody", "DropBody", "BaseBody"}
    assert len(abandoned) == 1


def test_building_the_golden_store_again_gives_identical_bytes(tmp_path):
    """The format that is written today is the committed one; a change needs a new version."""
    _tool().main(tmp_path / "again")
    again = _files(tmp_path / "again")
    golden = _files(NEWEST)
    assert again.keys() == golden.keys()
    assert [name for name in golden if golden[name] != again[name]] == []


def test_the_newest_store_holds_every_connector_a_fork_and_shared_segments():
    """What version 2 brought is in its golden stores, or they would prove nothing about it."""
    found = set()
    for pipeline in ("golden", "positions"):
        reader = holdfast.checkpoint.read_store(NEWEST, pipeline)
        for summary in reader.list():
            manifest = reader.manifest(summary)
            found |= {type(source.position).__name__ for source in manifest.sources}
            found |= {source.position.phase for source in manifest.sources
                      if hasattr(source.position, "phase")}  # fmt: skip
            assert manifest.counts == summary.counts == "live"
    names = {type_.__name__ for type_ in typing.get_args(position.Position)}
    assert found >= (names - {"CounterPosition"}) | {"snapshot", "stream", "follow"}
    reader = holdfast.checkpoint.read_store(NEWEST, "golden")
    used = [entry.path for summary in reader.list() for entry in reader.manifest(summary).segments]
    assert len(used) > len(set(used)) > 1
    manifests = [reader.manifest(summary) for summary in reader.list()]
    assert any(entry.gone for manifest in manifests for entry in manifest.segments)
    branch = holdfast.checkpoint.read_store(NEWEST, "branch")
    assert {entry.pipeline for entry in branch.manifest("latest").files} == {None, "golden"}


def test_a_store_of_version_1_goes_on_in_version_2(tmp_path):
    """Mixed documents add up; older documents keep their bytes; counts of the past are unknown."""
    root = Path(shutil.copytree(HERE / "v1", tmp_path / "v1"))
    before = _files(root / "golden")
    tool = _tool()
    with holdfast.checkpoint.open_store(root, "golden", topology=tool.TOPOLOGY) as store:
        tool.step(store, 5)
    after = _files(root / "golden")
    assert [n for n, d in before.items() if after[n] != d] == ["_latest"]
    new = [d for n, d in after.items() if n.endswith(".json") and n not in before]
    assert new
    assert all(b'"format":2,' in data for data in new if b'"format"' in data)
    assert [e.counts for e in holdfast.checkpoint.read_store(root, "golden").list()] == [
        "live", "unknown", "unknown", "unknown", "unknown",
    ]  # fmt: skip
