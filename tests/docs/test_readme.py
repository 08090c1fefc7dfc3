"""The first code of the README and `examples/orders.py` do what they say, in a fresh directory."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tests.helpers.paths import ROOT, child_environment


def run(program: str, *arguments: str, cwd: Path) -> str:
    """Run Python in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, program, *arguments], capture_output=True, text=True, check=False,
        timeout=240, cwd=cwd, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_first_example_of_the_readme_runs_and_goes_on(spark, tmp_path, monkeypatch) -> None:
    """Copied into a file and run twice, it publishes the totals of all files, each row once."""
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    (tmp_path / "first.py").write_text(code)
    (tmp_path / "incoming").mkdir()
    monkeypatch.chdir(tmp_path)
    rows = [("a", 1.0), ("b", 2.0), ("a", 4.0), ("b", -9.0)]
    for number in range(2):
        table = pa.table({"customer": [r[0] for r in rows], "amount": [r[1] for r in rows]})
        pq.write_table(table, tmp_path / "incoming" / f"{number}.parquet")
        runpy.run_path("first.py", run_name="__main__")  # in the session that is there
        net: dict = {}
        for row in (
            ds.dataset(tmp_path / "out" / "totals", partitioning="hive").to_table().to_pylist()
        ):
            key = (row["customer"], row["total"], row["orders"])
            net[key] = net.get(key, 0) + row["_weight"]
        times = number + 1
        wanted = {("a", 5.0 * times, 2 * times), ("b", 2.0 * times, times)}
        assert {key for key, n in net.items() if n} == wanted


def test_make_run_goes_on_where_the_first_one_stopped(spark, tmp_path, monkeypatch, capsys) -> None:
    """`examples/orders.py`, which `make run` runs, checks itself and resumes."""
    example = str(ROOT / "examples" / "orders.py")
    first = run(example, str(tmp_path), "4000", cwd=tmp_path)
    assert "4000 orders so far, each counted once" in first
    monkeypatch.setattr(sys, "argv", [example, str(tmp_path), "4000"])
    runpy.run_path(example, run_name="__main__")
    second = capsys.readouterr().out
    assert "resumed after epoch 3" in second
    assert "8000 orders so far, each counted once" in second
