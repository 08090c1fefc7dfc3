"""Connectors of other packages by their entry points: found, refused by name, never in the way."""

from __future__ import annotations

import sys

import pytest

import holdfast as hf
from holdfast.cli.commands.doctor import connectors
from holdfast.connectors import Sink, Source
from holdfast.errors import InvalidInputError

MODULE = """
from holdfast.connectors import Sink, Source

class Queue(Source):
    kind, schema_text = "queue", "n long"
    def columns(self): return ["n"]
    def empty(self, spark): raise NotImplementedError
    def open(self, name): raise NotImplementedError

class Mail(Sink):
    kind = "mail"
    def open(self, name, pipeline, store, spark): raise NotImplementedError

text = "no class"
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a package with entry points onto the path, as pip does."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(package: str, points: dict[str, dict[str, str]], module: str = MODULE) -> None:
        name = package.replace("-", "_")
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(module)
        info = tmp_path / f"{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        lines = [
            line
            for group, entries in points.items()
            for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
        ]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")

    return add


def test_a_package_adds_sources_and_sinks(install):
    """By `hf.sources.X`, by `from … import`, in `dir()`, and in what doctor tells."""
    before = dir(hf.sources)
    install("their-queue", {
        "holdfast.sources": {"Queue": "their_queue:Queue"},
        "holdfast.sinks": {"Mail": "their_queue:Mail"},
    })  # fmt: skip
    assert issubclass(hf.sources.Queue, Source)
    assert issubclass(hf.sinks.Mail, Sink)
    assert dir(hf.sources) == sorted([*before, "Queue"])
    from holdfast.sources import Queue

    assert Queue is hf.sources.Queue
    checks = {check.name: check for check in connectors()}
    assert "Queue (their-queue 1.2)" in checks["sources"].found
    assert "Mail (their-queue 1.2)" in checks["sinks"].found
    assert all(check.status == "ok" for check in checks.values())


def test_two_packages_with_one_name_are_refused_by_name(install):
    """Nobody guesses which one is meant; all other names work."""
    for package in ("one-queue", "two-queue"):
        module = package.replace("-", "_")
        install(package, {"holdfast.sources": {"Queue": f"{module}:Queue"}})
    with pytest.raises(InvalidInputError) as caught:
        _ = hf.sources.Queue
    assert caught.value.kind == "connector_clash"
    assert caught.value.facts["packages"] == "one-queue 1.2, two-queue 1.2"
    assert hf.sources.Files is not None
    assert [check.status for check in connectors()].count("warning") == 1


@pytest.mark.parametrize(
    ("value", "module", "reason"),
    [
        ("broken_one:Queue", "import no_such_module_anywhere", "no_such_module_anywhere"),
        ("broken_one:Nothing", MODULE, "Nothing"),
        ("broken_one:text", MODULE, "no class"),
        ("broken_one:Mail", MODULE, "Mail"),
        ("broken_one:Queue", "raise RuntimeError('half installed')", "half installed"),
    ],
)
def test_an_entry_point_that_cannot_be_used_names_its_package(install, value, module, reason):
    """Only those who ask for it are told, and doctor."""
    install("broken-one", {"holdfast.sources": {"Queue": value}}, module)
    assert "Queue" in dir(hf.sources)
    with pytest.raises(InvalidInputError) as caught:
        _ = hf.sources.Queue
    assert (caught.value.kind, caught.value.facts["package"]) == (
        "broken_connector",
        "broken-one 1.2",
    )
    assert reason in str(caught.value.facts["reason"])
    assert any("broken-one" in c.found for c in connectors() if c.status == "warning")


def test_a_name_of_holdfasts_own_stays_its_own(install):
    """Another package cannot replace `Files`; doctor says that it tries."""
    own = hf.sources.Files
    install("greedy", {"holdfast.sources": {"Files": "greedy:Queue"}})
    assert hf.sources.Files is own
    assert dir(hf.sources).count("Files") == 1
    warnings = [check.found for check in connectors() if check.status == "warning"]
    assert warnings == ["Files: greedy 1.2 gives it, but it is Holdfast's own"]


def test_a_name_that_nobody_gives_is_no_attribute():
    """The error lists the names that there are; private names ask no package."""
    with pytest.raises(AttributeError, match="there are: Files, Generator, Journal"):
        _ = hf.sources.Nothing
    assert not hasattr(hf.sinks, "_private")
