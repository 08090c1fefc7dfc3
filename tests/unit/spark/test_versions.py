"""The supported Sparks are the same wherever they are named, and their suite exists."""

from __future__ import annotations

import importlib.util
import sys
import tomllib

import pytest

from holdfast.cli.commands import doctor
from holdfast.guard.spark_files.layout import SUPPORTED_SPARK
from holdfast.spark.versions import RANGE, SUPPORTED
from tests.helpers.paths import ROOT


@pytest.fixture(scope="module")
def tool():
    """`tools/sparks.py`, as a module."""
    spec = importlib.util.spec_from_file_location("sparks", ROOT / "tools" / "sparks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["sparks"] = module
    spec.loader.exec_module(module)
    return module


def test_one_range_is_named_everywhere(tool):
    """In the package's requirements, the README, the tool and the guard."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"pyspark>={SUPPORTED[0]},<5" in project["optional-dependencies"]["spark"]
    assert f"PySpark {RANGE}" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert tool.SPARKS == SUPPORTED == SUPPORTED_SPARK


def test_every_test_of_the_short_suite_exists(tool):
    """A test that is renamed is renamed in the suite, too."""
    for each in tool.SUITE:
        path, _, name = each.partition("::")
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, each


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("3.5.9", "problem"),
        *((f"{minor}.1", "ok") for minor in SUPPORTED),
        ("4.4.0", "warning"),
        (None, "warning"),
    ],
)
def test_the_doctor_knows_the_range(monkeypatch, version, status):
    """Older is a problem, newer is not tried yet, and what is supported is named with the range."""
    monkeypatch.setattr(doctor, "_version", lambda _: version)
    (check,) = doctor.spark()
    assert check.status == status
    if status == "ok":
        assert check.found == f"{version}, supported: {RANGE}"
    else:
        assert check.remedy


def test_the_doctor_tries_fast_paths_only_when_asked():
    """Without the flag Spark is not started."""
    check = doctor.fast_paths(start=False)
    assert check.status == "skipped"
    assert "--spark" in check.found


@pytest.mark.parametrize("off", [[], ["selection"]])
def test_the_doctor_names_fast_paths_that_are_off(monkeypatch, off):
    """A warning with the path and its reason; the rest is listed as on."""
    from holdfast.spark import canaries, session

    class Session:
        def stop(self):
            """Nothing."""

    found = [
        canaries.Canary(path, "no _jc" if path in off else None)
        for path in ("selection", "row counts")
    ]
    monkeypatch.setattr(session, "open_session", lambda **_: Session())
    monkeypatch.setattr(canaries, "try_fast_paths", lambda _: found)
    check = doctor.fast_paths(start=True)
    assert check.status == ("warning" if off else "ok")
    assert ("off: selection (no _jc)" in check.found) == bool(off)
    assert "on: " in check.found


def test_the_doctor_says_why_spark_does_not_start(monkeypatch):
    """A Spark that does not start is a problem, not a trace."""
    from holdfast.spark import session

    def broken(**_):
        raise RuntimeError("no gateway")

    monkeypatch.setattr(session, "open_session", broken)
    assert doctor.fast_paths(start=True).status == "problem"
