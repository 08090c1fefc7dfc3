"""Reading state without Spark: Arrow and SQL say what the dict says, at every checkpoint."""

from __future__ import annotations

import doctest
import re
import subprocess
import sys

import pytest

import holdfast.checkpoint.reference
import holdfast.durations
import holdfast.kinds
import holdfast.settings
import holdfast.state.query
from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError
from holdfast.state import read_state
from tests.helpers.cli_world import World, damage, environment, standard
from tests.helpers.paths import ROOT

DOCUMENTED = [
    holdfast.state.query,
    holdfast.checkpoint.reference,
    holdfast.durations,
    holdfast.kinds,
    holdfast.settings,
]


@pytest.fixture
def world(tmp_path):
    return standard(tmp_path / "root")


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """The store of the examples."""
    monkeypatch.chdir(tmp_path)
    return World(tmp_path / "checkpoints").grow({"a": 10, "b": 20, "c": 30})


def _rows(table):
    return {row["customer"]: (row["total"], row["orders"]) for row in table.to_pylist()}


def test_every_checkpoint_is_what_it_was(world):
    """By id, epoch and name; deleted keys are gone, changed ones have their value of then."""
    for epoch, checkpoint in enumerate(world.ids):
        truth = world.truth[checkpoint]
        for at in (checkpoint, epoch, f"epoch:{epoch}"):
            state = read_state(world.reader, "totals", at=at)
            assert (state.checkpoint, state.epoch) == (checkpoint, epoch)
        assert _rows(state.to_arrow()) == truth
        assert _rows(state.sql("SELECT * FROM state")) == truth
        with state.batches(["total"]) as stream:
            assert stream.schema.names == ["total"]
            assert sum(sum(b.column(0).to_pylist()) for b in stream) == sum(
                total for total, _ in truth.values()
            )
    assert "epoch=3" in repr(state)


def test_what_is_not_there_is_said(world):
    """Operators, columns, rows and checkpoints that do not exist are errors with the choices."""
    for operator, kind in (("nope", "no_operator"), ("note", "no_trace")):
        with pytest.raises(NotFoundError) as caught:
            read_state(world.reader, operator)
        assert caught.value.kind == kind
        assert "totals" in str(caught.value)
    with pytest.raises(NotFoundError) as caught:
        read_state(world.reader, "totals").to_arrow(["nope"])
    assert (caught.value.kind, caught.value.facts["known"]) == (
        "no_column",
        "customer,total,orders",
    )
    with pytest.raises(NotFoundError):
        read_state(world.reader, "totals", at=99)


@pytest.mark.parametrize(
    "query", ["DELETE FROM state", "SELECT * FROM 'x.csv'", "SELECT 1; SELECT 2", "selekt", ""]
)
def test_a_query_only_reads_the_rows(world, query):
    """Whatever is more than one SELECT over the rows is refused."""
    with pytest.raises(InvalidInputError):
        read_state(world.reader, "totals").sql(query)


def test_damage_is_an_error_and_not_fewer_rows(world):
    """A flipped bit in a run stops Arrow and SQL alike."""
    damage(world.file_of("checkpoints/*/operators/totals/*.snap", 0))
    state = read_state(world.reader, "totals")
    for read in (state.to_arrow, lambda: state.sql("SELECT sum(total) FROM state")):
        with pytest.raises(CorruptionError):
            read()


def test_reading_needs_no_spark(world):
    """Neither pyspark nor pandas is loaded; DuckDB only for SQL."""
    code = (
        "import sys; from holdfast.checkpoint import read_store; from holdfast.state import read_state\n"
        f"read_state(read_store({str(world.root)!r}, 'orders'), 'totals').to_arrow()\n"
        "print(sorted({'pyspark', 'pandas', 'duckdb', 'click', 'holdfast.cli'} & {*sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=environment(),
    )
    assert done.stdout.strip() == "[]"


def test_the_guide_runs(shop):
    """The code of docs/guides/read-state.md is right, and so are its results."""
    text = (ROOT / "docs" / "guides" / "read-state.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "read-state.md", "exec"), {})


@pytest.mark.parametrize("module", DOCUMENTED, ids=lambda module: module.__name__)
def test_examples_of_docstrings_run(shop, module):
    """Each in a folder with a small store."""
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0
