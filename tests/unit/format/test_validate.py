"""Validation: every kind of finding has a manifest that produces it, and a severity."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import holdfast.format.validate as module
from holdfast.checkpoint import FilesPosition, Part
from holdfast.format.findings import errors_of
from holdfast.format.manifest import FileEntry, OperatorEntry, PackedState, SinkEntry, SourceEntry
from holdfast.format.topology import Topology
from holdfast.format.validate import validate
from tests.helpers.documents import DIGEST, ID, OLD, PACK, PARENT, RUN, inline, manifest, run
from tests.helpers.rig import at, shop

TOTALS = OperatorEntry(name="totals", trace="latest", rows=4, keys=2, bytes=30, counts="live")
COUNTER = OperatorEntry(name="counter", trace="small", small=inline(b"7"), bytes=1)
OTHER = "018bcfe5-6800-7000-8000-0000000000ff"


def _packed(*ranges, size=50):
    """A manifest whose small states lie in one pack at these ranges."""
    names = ["counter", "second", "third"]
    topology = shop(
        second=Part(name="second", kind="operator", what="x"),
        third=Part(name="third", kind="operator", what="x"),
    )
    operators = [
        OperatorEntry(
            name=name, trace="small",
            small=PackedState(path=PACK, offset=offset, length=length, sha256=DIGEST),
        )
        for name, (offset, length) in zip(names, ranges, strict=False)
    ]  # fmt: skip
    pack = FileEntry(path=PACK, size=size, sha256=DIGEST, kind="pack")
    files = [*manifest().files, pack]
    return manifest(
        topology=topology, operators=[*operators, TOTALS], listed=files,
        bytes_new=20 + size, bytes_total=30 + size,
    )  # fmt: skip


SEGMENT = f"checkpoints/{ID}/segments/00000000000000aa.json"


def _files(*entries):
    own = sum(e.size for e in entries if e.pipeline is None and ID in e.path)
    return {"listed": [*entries], "bytes_new": own, "bytes_total": sum(e.size for e in entries)}


def _source(**changes):
    fields = {"name": "orders", "position": at(9), "epoch": 3, "watermark_us": 60}
    return SourceEntry(**{**fields, **changes})


CASES = {
    "bad_id": ("error", manifest(checkpoint="x", **_files(run(OLD, kind="snapshot", base=None)))),
    "own_parent": ("error", manifest(parent=ID)),
    "bad_name": ("error", manifest(label="../x")),
    "negative": ("error", manifest(epoch=-1, sequence=-1)),
    "fingerprint_differs": ("error", manifest(fingerprint=DIGEST)),
    "vnodes_differ": ("error", manifest(topology=Topology(parts=shop().parts, vnodes=8))),
    "state_missing": ("error", manifest(operators=[COUNTER], **_files())),
    "sink_epoch_differs": (
        "error",
        manifest(sinks=[SinkEntry(name="out", epoch=2, token="t", replay="none")]),
    ),
    "source_epoch_ahead": ("error", manifest(sources=[_source(epoch=4)])),
    "duplicate_entry": ("error", manifest(sources=[_source(), _source()])),
    "orphan": ("error", manifest(sources=[_source(), _source(name="ghost")])),
    "without_entry": ("error", manifest(sources=[])),
    "duplicate_file": ("error", manifest(**_files(run(), run()))),
    "log_not_listed": (
        "error",
        manifest(sources=[_source(position=FilesPosition(files=1, log=f"checkpoints/{ID}/offsets/orders.json"))]),
    ),
    "bad_path": ("error", manifest(**_files(run("../../etc/passwd")))),
    "kind_differs": ("error", manifest(**_files(run(kind="pack")))),
    "bad_digest": ("error", manifest(**_files(run(sha256="x")))),
    "delta_without_base": ("error", manifest(**_files(run(base=None)))),
    "inherits": (
        "error",
        manifest(incremental=False, **_files(run(OLD, kind="snapshot", base=None))),
    ),
    "operator_differs": ("error", manifest(**_files(run(operator="counter")))),
    "orphan_file": ("error", manifest(operators=[COUNTER], **_files(run()))),
    "no_partition": ("error", manifest(**_files(run(partition=None)))),
    "partition_differs": ("error", manifest(**_files(run(partition=3)))),
    "bad_hash_range": ("error", manifest(**_files(run(hash_min=5, hash_max=4)))),
    "digest_differs": (
        "error",
        manifest(operators=[msgspec.structs.replace(COUNTER, small=msgspec.structs.replace(inline(b"7"), data=b"8")), TOTALS]),
    ),
    "no_state": ("error", manifest(operators=[msgspec.structs.replace(COUNTER, small=None), TOTALS])),
    "two_states": (
        "error",
        manifest(operators=[COUNTER, msgspec.structs.replace(TOTALS, small=inline(b"x"))]),
    ),
    "ranges_overlap": ("error", _packed((0, 10), (9, 5))),
    "range_outside": ("error", _packed((45, 6))),
    "pack_not_listed": (
        "error",
        manifest(operators=[msgspec.structs.replace(COUNTER, small=PackedState(path=PACK, offset=0, length=1, sha256=DIGEST)), TOTALS]),
    ),
    "watermark_ahead": ("warning", manifest(watermark_us=61)),
    "total_differs": ("error", manifest(bytes_new=21)),
    "bad_vnode_range": ("error", manifest(**_files(run(vnode_low=4, vnode_high=4)))),
    "bad_segment": ("error", manifest(**_files(run(SEGMENT, kind="segment")))),
    "counts_differ": ("error", manifest(counts="bound")),
}  # fmt: skip


def test_a_good_manifest_has_no_finding():
    """The document that all cases are made from is itself in order."""
    assert validate(manifest()) == []
    assert validate(_packed((0, 10), (10, 5), (15, 35))) == []


@pytest.mark.parametrize("kind", CASES)
def test_every_kind_of_finding_is_produced_with_its_severity(kind):
    """The finding is there, with the severity that it must have, and can be read as a line."""
    severity, bad = CASES[kind]
    found = [finding for finding in validate(bad) if finding.kind == kind]
    assert found, [str(f) for f in validate(bad)]
    assert {finding.severity for finding in found} == {severity}
    assert str(found[0]).startswith(f"{severity}: ")
    assert bool(errors_of(validate(bad))) == (severity == "error")


def test_no_kind_of_finding_is_without_a_test():
    """Every kind that the source can report stands in the table above."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    kinds = set(re.findall(r'_find\(\s*"?(?:error|warning|info|missing)"?,\s*"(\w+)"', text))
    assert kinds == set(CASES)


@pytest.mark.parametrize(
    "bad",
    [
        _packed((-1, 5)), _packed((0, -1)), _packed((0, 51)), _packed((51, 0)), _packed((2**62, 2**62)),
    ],
)  # fmt: skip
def test_a_range_cannot_leave_its_pack(bad):
    """Negative, overlong and overflowing ranges are all outside."""
    assert "range_outside" in {finding.kind for finding in validate(bad)}


def test_the_first_finding_is_the_worst():
    """Errors come before warnings, warnings before notes."""
    found = validate(manifest(watermark_us=61, parent=ID, sinks=[]))
    assert [finding.severity for finding in found] == ["error", "warning", "info"]


def test_an_idle_source_does_not_hold_the_watermark():
    """Only busy sources are compared with the pipeline's watermark."""
    assert validate(manifest(watermark_us=61, sources=[_source(idle=True)])) == []


def test_a_sink_or_operator_without_entry_is_worth_knowing():
    """What has nothing to say yet is a note, not an error."""
    found = validate(manifest(sinks=[]))
    assert [(f.kind, f.severity) for f in found] == [("without_entry", "info")]


def test_a_snapshot_and_a_delta_have_their_own_suffix():
    """A path cannot say snapshot where the entry says delta."""
    for bad in (run(kind="snapshot"), run(OLD, kind="delta")):
        assert "kind_differs" in {f.kind for f in validate(manifest(**_files(bad)))}


def test_only_entries_of_the_parent_are_taken_on_trust():
    """With a parent, an equal entry that is not the parent's own is still looked at."""
    bad = run(sha256="x")
    parent = manifest(**_files(run(OLD, kind="snapshot", base=None)))
    child = manifest(**_files(*parent.files, bad))
    assert "bad_digest" in {f.kind for f in validate(child, parent=parent)}
    assert PARENT in OLD
    assert RUN != OLD
