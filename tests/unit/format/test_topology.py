"""Topology and fingerprint: independent of order, sensitive to meaning, readable in difference."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint import Part, Topology, topology
from holdfast.errors import InvalidInputError
from holdfast.format.topology import differences, fingerprint
from tests.helpers.paths import child_environment
from tests.helpers.rig import shop

PART = Part(
    name="totals", kind="operator", what="sum", inputs=["orders", "extra"], keys=["a", "b"],
    schema="a int", version=1, stateful=True, params={"x": "1", "y": "2"},
)  # fmt: skip
SOURCES = [Part(name=name, kind="source", what="files") for name in ("orders", "extra")]
CHANGES = {
    "name": "sums",
    "kind": "table",
    "what": "avg",
    "inputs": ["extra", "orders"],
    "keys": ["b", "a"],
    "schema": "a bigint",
    "version": 2,
    "stateful": False,
    "params": {"x": "1", "y": "3"},
}


@given(st.permutations([*SOURCES, PART]))
def test_the_order_of_declaration_does_not_matter(parts):
    """Every order of the same parts has one fingerprint, also without `topology`'s sorting."""
    expected = fingerprint(topology(*SOURCES, PART))
    assert fingerprint(topology(*parts)) == expected
    assert fingerprint(Topology(parts=parts)) == expected


def test_the_fingerprint_does_not_depend_on_hash_order():
    """Two processes with different hash seeds agree."""
    code = (
        "from holdfast.format.topology import *\n"
        "p=Part(name='a',kind='operator',what='x',params={k:k for k in {'q','w','e','r','t'}})\n"
        "print(fingerprint(topology(p)))"
    )
    env = child_environment()
    seen = {
        subprocess.check_output([sys.executable, "-c", code], env={**env, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    }
    assert len(seen) == 1


@pytest.mark.parametrize("field", Part.__struct_fields__)
def test_every_change_of_meaning_changes_the_fingerprint(field):
    """There is no field of a part that the fingerprint leaves out, and each difference is named."""
    changed = msgspec.structs.replace(PART, **{field: CHANGES[field]})
    old, new = Topology(parts=[*SOURCES, PART]), Topology(parts=[*SOURCES, changed])
    assert fingerprint(old) != fingerprint(new)
    found = differences(old, new)
    if field == "name":
        assert [(d.part, d.change) for d in found] == [("sums", "added"), ("totals", "removed")]
    else:
        assert [(d.part, d.change, d.field) for d in found] == [("totals", "changed", field)]
        assert f"totals: {field} was " in str(found[0])


def test_the_number_of_vnodes_changes_the_fingerprint():
    """State of another number of vnodes is other state."""
    old, new = Topology(parts=[PART]), Topology(parts=[PART], vnodes=128)
    assert fingerprint(old) != fingerprint(new)
    assert [str(d) for d in differences(old, new)] == ["(pipeline): vnodes was 256, is 128"]


def test_equal_topologies_have_no_difference():
    """Nothing changed, nothing to say."""
    assert differences(shop(), shop()) == []


def test_differences_are_read_part_by_part():
    """Several changes come in order of name, in words."""
    new = shop(
        counter=None,
        extra=Part(name="extra", kind="source", what="files"),
        totals=Part(name="totals", kind="operator", what="sum", inputs=["orders"], stateful=True),
    )
    assert [str(d) for d in differences(shop(), new)] == [
        "counter: removed", "extra: added", 'totals: keys was ["customer"], is []',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([PART], "unknown_input"),
        ([*SOURCES, PART, PART], "duplicate_name"),
        ([Part(name="../x", kind="source", what="f")], "invalid_name"),
    ],
)
def test_a_topology_that_makes_no_sense_is_refused(parts, kind):
    """Names are allowed and unique, inputs exist."""
    with pytest.raises(InvalidInputError) as caught:
        topology(*parts)
    assert caught.value.kind == kind
    assert caught.value.remedy
