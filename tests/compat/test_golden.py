"""Golden stores: what version 1 wrote is read for ever, and is still written byte for byte."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

import holdfast
from holdfast.format import manifest as m
from holdfast.format import paths
from holdfast.format import records as r

HERE = Path(__file__).parent
GOLDEN = HERE / "v1"
LOCKS = {"golden/lock"}


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


@pytest.fixture
def copy(tmp_path):
    """A copy that may be written to."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "v1"))


def test_the_golden_store_is_whole():
    """Deep verification of the committed bytes finds nothing."""
    report = holdfast.verify_store(holdfast.read_store(GOLDEN, "golden"), deep=True)
    assert report.ok, [str(f) for f in report.all_findings()]
    assert report.all_findings() == []
    assert (report.checkpoints, report.files) == (4, 22)


def test_the_golden_store_is_listed():
    """Epochs, labels, branches, savepoint and outcomes are as they were written."""
    reader = holdfast.read_store(GOLDEN, "golden")
    listed = reader.list()
    assert [(e.epoch, e.abandoned, e.label) for e in listed] == [
        (4, False, None), (3, True, None), (2, False, None), (1, False, "nightly"),
    ]  # fmt: skip
    (pin,) = reader.pins()
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
    with holdfast.open_store(copy, "golden", topology=tool.TOPOLOGY) as store:
        assert store.current.epoch == 4
        assert [(t.sink, t.epoch) for t in store.recovery.roll_forward] == [("bus", 4)]
        assert store.epoch_next == 5
        tool.step(store, 5)
    assert holdfast.verify_store(holdfast.read_store(copy, "golden"), deep=True).ok


def test_encoding_the_golden_documents_again_gives_the_same_bytes():
    """Every document is decoded and encoded to exactly the bytes on disk."""
    seen = set()
    for name, data in _files(GOLDEN).items():
        path = name.removeprefix("golden/")
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
            "manifest": lambda d, p, x: m.manifest_bytes(m.parse_manifest(d, p, x.checkpoint)),
        }.get(meaning.kind)
        if again is not None:
            seen.add(meaning.kind)
            assert again(data, path, meaning) == data, name
    assert seen == {"header", "latest", "record", "pin", "outcome", "manifest"}


def test_the_golden_store_holds_every_kind_of_record():
    """Open, commit, drop and base records, a rollback among them."""
    kinds, abandoned = set(), []
    for name, data in _files(GOLDEN / "golden" / "catalog").items():
        body = r.parse_record(data, name, int(name.split(".")[0])).body
        kinds.add(type(body).__name__)
        abandoned += getattr(body, "abandoned", [])
    assert kinds == {"OpenBody", "CommitBody", "DropBody", "BaseBody"}
    assert len(abandoned) == 1


def test_building_the_golden_store_again_gives_identical_bytes(tmp_path):
    """The format that is written today is the committed one; a change needs a new version."""
    _tool().main(tmp_path / "again")
    again, golden = _files(tmp_path / "again"), _files(GOLDEN)
    assert again.keys() == golden.keys()
    assert [name for name in golden if golden[name] != again[name]] == []
