"""With a clock and ids of one's own, a run can be replayed."""

from __future__ import annotations

import json
import re

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.ids import SeededIds
from tests.helpers.pipeline_world import SCHEMA, write_rows

EPOCHS = 3
# What tasks name by themselves, and what hangs on those names. The rest is the driver's.
_TASKS = re.compile(r'"[^"]*?[0-9a-f]{16}[^"]*"|"[0-9a-f]{64}"')


def run(home, spark, rows_from, *, seed: int):
    """A pipeline with windows and an aggregate: its records, manifests and when it slept."""
    clock = ManualClock()
    slept = []

    class Watched(ManualClock):
        def sleep_ms(self, duration_ms: int) -> None:
            slept.append(duration_ms)
            super().sleep_ms(duration_ms)

    clock = Watched()
    pipe = hf.Pipeline(
        "p", store=home / "cp", spark=spark, partitions=2, clock=clock, ids=SeededIds(seed)
    )
    rows = pipe.source("in", hf.sources.Files(str(rows_from), schema=SCHEMA, files_max=1))
    totals = rows.group_by("k").agg(n=hf.count(), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet(str(home / "out")))
    asked = []

    def stop() -> bool:
        asked.append(None)
        return len(slept) > 1

    pipe.run(forever=True, poll_ms=7, stop=stop)
    root = home / "cp" / "p"
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.json"))
    texts = {name: (root / name).read_text(encoding="utf-8") for name in files}
    return slept, clock.wall_us(), texts


def normal(text: str) -> str:
    """A document without what tasks chose."""
    json.loads(text)
    return _TASKS.sub('"?"', text)


def test_a_run_with_the_same_clock_and_ids_writes_the_same_records(spark, tmp_path) -> None:
    """Same names of checkpoints, records and manifests, same times; only tasks name by chance."""
    for number in range(EPOCHS):
        write_rows(tmp_path / "in", number, [(f"k{n}", n, 0.0, 1) for n in range(number + 2)])
    first = run(tmp_path / "a", spark, tmp_path / "in", seed=7)
    again = run(tmp_path / "b", spark, tmp_path / "in", seed=7)
    other = run(tmp_path / "c", spark, tmp_path / "in", seed=8)
    assert first[0] == again[0] == [7, 7], "waiting is the clock's, and takes no time"
    assert first[1] == again[1]
    manifests = [name for name in first[2] if "manifest" in name]
    assert len(manifests) == EPOCHS
    assert list(first[2]) == list(again[2])
    home = str(tmp_path)
    for name, text in first[2].items():
        mine, theirs = text.replace(f"{home}/a", ""), again[2][name].replace(f"{home}/b", "")
        assert normal(mine) == normal(theirs), name
    assert list(other[2]) != list(first[2])
