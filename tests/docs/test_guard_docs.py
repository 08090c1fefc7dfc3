"""What the documents promise about the guard runs as it is written there."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

import holdfast as hf
from holdfast.clock import SystemClock
from holdfast.errors import InvalidInputError, NotFoundError
from tests.helpers.paths import ROOT, child_environment

GUIDE = ROOT / "docs" / "guides" / "structured-streaming.md"


def _orders(session):
    return session.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()


def test_the_three_lines_of_the_guide_lead_to_a_savepoint(spark, tmp_path):
    """From an existing query to its first savepoint, with the guide's own lines."""
    lines = re.search(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)[1]
    for name in ("checkpoints/orders", "tables/orders", "savepoints"):
        assert f'"{name}"' in lines
        lines = lines.replace(f'"{name}"', repr(str(tmp_path / name)))
    active = type(spark).getActiveSession()  # what a program with one session has
    names = {"spark": active, "orders": _orders(active)}
    exec(compile(lines, str(GUIDE), "exec"), names)
    location, store = tmp_path / "checkpoints" / "orders", tmp_path / "savepoints"
    deadline = SystemClock().monotonic_ms() + 60_000
    while not _saved(location, store):
        assert SystemClock().monotonic_ms() < deadline, "no savepoint after ten batches"
        time.sleep(0.1)
    names["query"].stop()
    assert _saved(location, store)[-1].batch >= 9
    assert not hf.guard.verify(location, store).findings


def _saved(location, store):
    try:
        return hf.guard.ls(location, store)
    except NotFoundError:
        return []


def test_attaching_through_another_session_is_refused_instead_of_never_saving(spark, tmp_path):
    """A listener hears its own session's queries only; attach() says so at once."""
    query = _orders(spark).writeStream.option("checkpointLocation", str(tmp_path / "ck"))
    query = query.format("noop").start()
    with pytest.raises(InvalidInputError) as raised:
        hf.guard.attach(query, tmp_path / "savepoints", spark=spark.newSession())
    query.stop()
    assert raised.value.kind == "other_session"
    assert not (tmp_path / "savepoints").exists()


@pytest.mark.soak
@pytest.mark.spark
def test_the_example_shows_both_sides_of_a_changed_digit():
    """Plain Spark loses every new row, with the guard none is lost; the example checks itself."""
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "guard_bit_flip.py")], capture_output=True,
        text=True, timeout=240, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Spark alone:    restarts without complaint, 200 of 200 new rows are lost" in done.stdout
    assert "restored the savepoint, 0 of 200 new rows are lost" in done.stdout
