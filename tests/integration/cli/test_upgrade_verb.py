"""`holdfast upgrade`: says what it would do, does it once, and older counts are not shown."""

from __future__ import annotations

import shutil

import pytest

from tests.helpers.cli_world import call, snapshot
from tests.helpers.paths import TESTS

GOLDEN = TESTS / "compat" / "v1"


@pytest.fixture
def old(tmp_path):
    """A copy of the golden store of version 1."""
    shutil.copytree(GOLDEN / "golden", tmp_path / "root" / "golden")
    return tmp_path / "root"


def test_upgrade_plans_upgrades_and_has_nothing_more_to_do(old):
    """The dry run reads only; the second run writes nothing."""
    before = snapshot(old)
    dry = call("upgrade", "--dry-run", str(old / "golden"), "--json")
    assert dry.code == 0
    assert dry.json["schema"] == "holdfast.upgrade/1"
    assert (dry.json["format_before"], dry.json["format_after"]) == (1, 2)
    assert (dry.json["records"], dry.json["kept"]) == (6, {"manifests": 4})
    assert len(dry.json["steps"]) == 3
    assert snapshot(old) == before
    done = call("upgrade", str(old / "golden"))
    assert (done.code, "upgraded" in done.out) == (0, True)
    after = snapshot(old)
    again = call("upgrade", str(old / "golden"), "--json")
    assert (again.code, again.json["steps"], again.json["format_before"]) == (0, [], 2)
    assert snapshot(old) == after
    assert call("verify", "--deep", str(old / "golden")).code == 0


def test_counts_of_version_1_are_shown_as_unknown(old):
    """Stored rows are not passed off as live ones."""
    listed = call("ls", str(old / "golden"), "--json").json["checkpoints"]
    assert {(row["rows"], row["keys"], row["counts"]) for row in listed} == {
        (None, None, "unknown")
    }
    shown = call("show", str(old / "golden"), "gold")
    assert "not known" in shown.out
    found = call("show", str(old / "golden"), "gold", "--json").json
    operators = {operator["name"]: operator for operator in found["operators"]}
    assert operators["totals"]["rows"] is None
    assert operators["counter"]["keys"] == 1  # small state says it itself
