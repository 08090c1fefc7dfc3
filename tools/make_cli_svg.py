"""Record a terminal session as docs/img/cli.svg: ls, show, verify, diff on a real store.

Run: python tools/make_cli_svg.py
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.pop("NO_COLOR", None)

import pyarrow as pa  # noqa: E402 - after the path
from rich.console import Console  # noqa: E402
from rich.text import Text  # noqa: E402

import holdfast as hf  # noqa: E402
from holdfast.checkpoint.reference import find_checkpoint  # noqa: E402
from holdfast.cli.commands import diff, ls, show, verify  # noqa: E402
from holdfast.cli.render import Line  # noqa: E402
from holdfast.cli.targets import find_place  # noqa: E402
from holdfast.clock import ManualClock  # noqa: E402
from holdfast.ids import SeededIds  # noqa: E402
from holdfast.state import (  # noqa: E402
    DELETED,
    HASH,
    LatestPartition,
    RunSource,
    RunTarget,
    TraceKind,
    TraceSchema,
    put_trace,
    runs_of,
)

SVG = ROOT / "docs" / "img" / "cli.svg"
START_US = 1_794_700_000_000_000
TOPOLOGY = hf.checkpoint.topology(
    hf.checkpoint.Part(name="orders", kind="source", what="kafka"),
    hf.checkpoint.Part(
        name="totals", kind="operator", what="aggregate", inputs=["orders"], stateful=True
    ),
    hf.checkpoint.Part(name="totals_out", kind="sink", what="parquet", inputs=["totals"]),
)
TOTALS: list[tuple[str, pa.DataType]] = [("total", pa.float64()), ("orders", pa.int64())]
SCHEMA = TraceSchema.latest(pa.schema([("customer", pa.string())]), pa.schema(TOTALS))
EPOCHS: list[dict[str, float | None]] = [
    {f"customer-{n}": 10.5 * n for n in range(400)},
    {f"customer-{n}": 12.0 * n for n in range(0, 60, 3)},
    {"customer-7": 99.5, "customer-9": None, "newcomer": 12.0},
]


def build(root: Path, clock: ManualClock) -> None:
    """Three epochs of a small pipeline, with a savepoint."""
    ids = SeededIds(7)
    with hf.checkpoint.open_store(root, "orders", topology=TOPOLOGY, clock=clock, ids=ids) as store:
        for number, change in enumerate(EPOCHS):
            clock.advance_ms(3_600_000)
            draft = store.draft()
            runs = list(runs_of(store.current, "totals")) if store.current else []
            trace = LatestPartition.open(runs, RunSource(store.storage, pipeline="orders"), SCHEMA)
            target = RunTarget(
                checkpoint=draft.checkpoint, operator="totals", partition=0, partitions=1,
                attempt=ids.token(), epoch=draft.epoch, base=draft.parent, pipeline="orders",
            )  # fmt: skip
            run = trace.apply(_rows(change), store.storage, target)
            runs += [run] if run is not None else []
            put_trace(draft, "totals", TraceKind.LATEST, runs, partitions=1, keys=400)
            offsets = {"0": 5_000 + 310 * number, "1": 4_870 + 295 * number}
            draft.set_source("orders", hf.checkpoint.KafkaPosition(topics={"orders": offsets}),
                             watermark_us=clock.wall_us() - 5_000_000)  # fmt: skip
            draft.add_processed(len(change))
            draft.stage_sink("totals_out", "staged", replay="deduplicates")
            summary = store.commit(draft)
            store.record_outcome(summary.checkpoint, "totals_out", "committed")
        store.pin("before-upgrade", "epoch:1")


def _rows(change: dict[str, float | None]) -> Any:
    keys = list(change)
    hashes = [int.from_bytes(hashlib.sha256(k.encode()).digest()[:8], "little", signed=True)
              for k in keys]  # fmt: skip
    return pa.table({
        HASH: pa.array(hashes, pa.int64()),
        DELETED: pa.array([change[k] is None for k in keys]),
        "customer": keys,
        "total": pa.array([change[k] for k in keys], pa.float64()),
        "orders": pa.array([None if change[k] is None else 1 for k in keys], pa.int64()),
    })  # fmt: skip


def record() -> None:
    """Print the session into a recording console and save it."""
    console = Console(record=True, width=80, force_terminal=True, color_system="truecolor",
                      file=open(os.devnull, "w", encoding="utf-8"), highlight=False)  # noqa: SIM115  # fmt: skip

    def command(line: str, lines: Iterable[Line]) -> None:
        console.print(Text.assemble(("$ ", "green"), (line, "bold")))
        for each in lines:
            pieces = [(text, style or "default") for text, style in each]
            console.print(Text.assemble(*pieces), soft_wrap=True)
        console.print("")

    clock = ManualClock(START_US)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "checkpoints"
        build(root, clock)
        clock.advance_ms(240_000)
        place, now = find_place(str(root)), clock.wall_us()

        def find(ref: str) -> Any:
            return find_checkpoint(place.reader, ref, now)

        command("holdfast ls checkpoints", ls.checkpoint_lines(ls.list_checkpoints(place, now)))
        shown = show.show_checkpoint(place, find("before-upgrade"), now)
        command("holdfast show checkpoints before-upgrade", show.checkpoint_lines(shown))
        verified = verify.verify_place(place, deep=True)
        command("holdfast verify --deep checkpoints", verify.verification_lines(verified))
        difference = diff.diff_places(
            place, find("before-upgrade"), find("latest"), operator="totals"
        )
        command(
            "holdfast diff checkpoints before-upgrade latest --operator totals",
            diff.difference_lines(difference),
        )
    SVG.parent.mkdir(parents=True, exist_ok=True)
    svg = console.export_svg(title="holdfast", unique_id="holdfast-cli")
    # No font is loaded from elsewhere: a picture in a repository must not call home.
    SVG.write_text(re.sub(r"\s*@font-face \{[^}]*\}", "", svg))


if __name__ == "__main__":
    record()
    print(f"wrote {SVG.relative_to(ROOT)}")
