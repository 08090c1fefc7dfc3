"""How much memory a pipeline needs, and whether that follows its settings instead of its input.

Run: python benchmarks/bench_memory.py [--case files,wide,key,backlog] [--rows 20000000] [--small] [--json]

Each case runs in a process of its own, with default settings in local[2]. Every 100 ms the resident
memory of the whole process tree is added up: the driver, its JVM, and all Python workers. RSS
counts a page that two processes share twice; PSS counts it once. Answers are compared with DuckDB.

files    rows in 200 files, summed by 100,000 keys
wide     few bytes of Parquet that unpack to wide rows: the same text in every row
key      one key with all rows: count, sum, extremes and the median
backlog  many files of repeated values, some 50 GB once they are read at full size
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 20_000_000
CASES = ("files", "wide", "key", "backlog")
LIMIT_MB = 2_048
_TEXT = 500


def tree(root: int) -> list[int]:
    """A process and all that it has started."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(text.rsplit(")", 1)[1].split()[1]), []).append(int(name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def memory_kb(pid: int) -> dict[str, int]:
    """RSS, PSS and anonymous memory of one process."""
    found = {}
    try:
        for text in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, value = text.partition(":")
            if name in ("Rss", "Pss", "Pss_Anon"):
                found[name] = int(value.split()[0])
    except OSError:
        return {}
    return found


class Peak:
    """The largest sums over a process tree, and what each kind of process had then."""

    def __init__(self, root: int) -> None:
        self.root, self.peaks, self.at_peak = root, dict[str, int](), dict[str, int]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            total: dict[str, int] = {}
            parts: dict[str, int] = {}
            for pid in tree(self.root):
                facts = memory_kb(pid)
                for name, value in facts.items():
                    total[name] = total.get(name, 0) + value
                try:
                    kind = "jvm" if "java" in os.readlink(f"/proc/{pid}/exe") else "python"
                except OSError:
                    continue
                kind = "driver" if pid == self.root else kind
                parts[kind] = parts.get(kind, 0) + facts.get("Rss", 0)
            if total.get("Rss", 0) > self.peaks.get("Rss", 0):
                self.at_peak = parts
            for name, value in total.items():
                self.peaks[name] = max(self.peaks.get(name, 0), value)

    def stop(self) -> dict[str, Any]:
        self._stop.set()
        self._thread.join()
        found: dict[str, Any] = {f"{k.lower()}_mb": v // 1024 for k, v in self.peaks.items()}
        return found | {"at_peak_mb": {k: v // 1024 for k, v in self.at_peak.items()}}


# Inputs


def write_files(home: Path, rows: int) -> None:
    """Numbers and short texts, in 200 files."""
    each = rows // 200
    rng = np.random.default_rng(1)
    for number in range(200):
        table = pa.table(
            {
                "k": rng.integers(0, 100_000, each),
                "x": rng.integers(0, 1_000, each),
                "s": pa.array(np.char.add("customer ", rng.integers(0, 9_999, each).astype(str))),
            }
        )
        pq.write_table(table, home / f"f{number:04d}.parquet")


def write_wide(home: Path, rows: int, files: int = 1) -> None:
    """The same long text in every row: it stands in the file once for each row group."""
    each = rows // files
    text = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1_000_000, np.int32)), pa.array(["w" * _TEXT])
    )
    for number in range(files):
        schema = pa.schema([("k", pa.int64()), ("s", text.type)])
        with pq.ParquetWriter(home / f"w{number:05d}.parquet", schema, compression="zstd") as out:
            for start in range(0, each, 1_000_000):
                count = min(1_000_000, each - start)
                keys = pa.array(np.arange(start, start + count) % 1_000)
                out.write_table(pa.table([keys, text.slice(0, count)], schema=schema))


def write_key(home: Path, rows: int) -> None:
    """One key, distinct values."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])
    rng = np.random.default_rng(1)
    with pq.ParquetWriter(home / "k.parquet", schema) as out:
        for start in range(0, rows, 1_000_000):
            count = min(1_000_000, rows - start)
            out.write_table(pa.table([np.zeros(count, np.int64), rng.random(count)], schema=schema))


# Pipelines


def run_case(case: str, home: Path) -> dict[str, Any]:
    """In the child."""
    import holdfast as hf

    began = time.perf_counter()
    epochs: list[float] = []
    pipe = hf.Pipeline(case, store=home / "store", spark_config={"spark.master": "local[2]"})
    schema = {"files": "k long, x long, s string", "key": "k long, x double"}
    source = hf.sources.Files(
        home / "in", schema=schema.get(case, "k long, s string"), min_age_ms=0
    )
    stream = pipe.source("rows", source)
    aggregates: Callable[[Any], Any] = globals()[f"_{case}"]
    aggregates(stream)
    summary = pipe.run(on_epoch=lambda report: epochs.append(report.total_ms))
    seconds = time.perf_counter() - began
    pq.write_table(pipe.view("totals").to_arrow(), home / "got.parquet")
    return {
        "rows": summary.rows,
        "epochs": summary.epochs,
        "seconds": round(seconds, 1),
        "longest_epoch_ms": round(max(epochs)),
    }


def is_right(case: str, home: Path) -> bool:
    """Whether the view has what DuckDB makes of the same files; in the parent, unmeasured."""
    import duckdb

    db = duckdb.connect()
    db.execute("SET memory_limit='4GB'")
    want = db.execute(SQL[case].format(files=f"'{home}/in/*.parquet'")).fetchall()
    got = db.execute(f"SELECT * FROM '{home}/got.parquet'").fetchall()
    sides = [sorted(tuple(map(_rough, row)) for row in side) for side in (got, want)]
    return sides[0] == sides[1]


def _rough(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def _files(stream: Any) -> None:
    import holdfast as hf

    stream.group_by("k").agg(n=hf.count(), x=hf.sum("x"), s=hf.max("s"), name="totals")


def _wide(stream: Any) -> None:
    import holdfast as hf

    stream.group_by("k").agg(n=hf.count(), s=hf.max("s"), name="totals")


_backlog = _wide


def _key(stream: Any) -> None:
    import holdfast as hf

    stream.group_by("k").agg(
        n=hf.count(),
        s=hf.sum("x"),
        lo=hf.min("x"),
        hi=hf.max("x"),
        m=hf.percentile("x", 0.5),
        name="totals",
    )


SQL = {
    "files": "SELECT k, count(*), sum(x)::BIGINT, max(s) FROM {files} GROUP BY k",
    "wide": "SELECT k, count(*), max(s) FROM {files} GROUP BY k",
    "backlog": "SELECT k, count(*), max(s) FROM {files} GROUP BY k",
    "key": "SELECT k, count(*), sum(x), min(x), max(x), quantile_cont(x, 0.5) FROM {files} GROUP BY k",
}


def measure(case: str, rows: int) -> dict[str, Any]:
    """One case in a process of its own."""
    home = Path(tempfile.mkdtemp(prefix=f"holdfast-memory-{case}-"))
    try:
        (home / "in").mkdir()
        if case == "files":
            write_files(home / "in", rows)
        elif case == "key":
            write_key(home / "in", rows)
        else:
            write_wide(home / "in", rows, 1 if case == "wide" else 50)
        on_disk = sum(file.stat().st_size for file in (home / "in").iterdir())
        command = [sys.executable, __file__, "--child", case, str(home)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        peak = Peak(child.pid)
        out, err = child.communicate()
        facts = {"case": case, "input_mb": round(on_disk / 1e6, 1), **peak.stop()}
        if child.returncode:
            return facts | {"failed": err.strip().splitlines()[-5:]}
        facts |= json.loads(out.strip().splitlines()[-1])
        return facts | {"right": is_right(case, home) and facts["rows"] == rows}
    finally:
        shutil.rmtree(home, ignore_errors=True)


def main() -> int:
    """All cases that were asked for; 1 if one needs too much or answers wrongly."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--case", default=",".join(CASES[:3]))
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--small", action="store_true", help="a tenth of the rows")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2)
    given = parser.parse_args()
    if given.child:
        case, home = given.child
        print(json.dumps(run_case(case, Path(home))))
        return 0
    rows = given.rows // 10 if given.small else given.rows
    bad = 0
    for case in given.case.split(","):
        facts = measure(case, rows * 5 if case == "backlog" else rows)
        bad += not facts.get("right") or facts.get("rss_mb", LIMIT_MB) > LIMIT_MB
        print(json.dumps(facts) if given.json else facts, flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
