"""Draw the curves of docs/internals/scale.md and write its tables, from the simulator's results.

    python tools/draw_scale.py            tables and pictures (needs the extra `bench`)
    python tools/draw_scale.py --tables   tables only (standard library)

Results: docs/internals/scale.json, which benchmarks/simulate_scale.py writes. Every number of the
page stands in a table that is written here, so that a test can compare the page with the results.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "internals" / "scale.json"
PAGE = ROOT / "docs" / "internals" / "scale.md"
IMAGES = ROOT / "docs" / "img"

# Assumptions, not measurements: list prices of S3 Standard in a large region, in US dollars.
READS_OF_A_RUN = 2  # by a lookup, and by a compaction
ASSUMED = {
    "date": "2026-11-18",
    "PUT, LIST: 1,000 requests": 0.005,
    "GET, HEAD: 1,000 requests": 0.0004,
    "DELETE": 0.0,
    "storage: GB and month": 0.023,
    "traffic inside the region": 0.0,
    "executors": 1_000,
    "reads of a run (by a lookup, by a compaction)": READS_OF_A_RUN,
}
DAY_S = 86_400
# The palette of Okabe and Ito, which people with colour blindness tell apart; lighter on dark.
COLOURS = {
    "light": ("#0072B2", "#E69F00", "#009E73", "#D55E00"),
    "dark": ("#56B4E9", "#F0C04A", "#3CC8A0", "#FF8A5C"),
}
THEMES = {"light": ("#ffffff", "#24292f", "#d0d7de"), "dark": ("#0d1117", "#e6edf3", "#30363d")}


def costs(results: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    """One pipeline of the paper, for a day."""
    driver = driver_share(results)
    epochs, partitions = DAY_S / row["seconds"], row["partitions"]
    busy = partitions * -math.expm1(-row["changes"])
    runs = busy * (1 + row["merges"])
    files = partitions * row["layers"]
    puts = epochs * (runs + driver["PUT"] + driver["LIST"])
    gets = epochs * (runs * READS_OF_A_RUN + driver["GET"])
    state = partitions * row["bytes"]
    return {
        "runs": runs,
        "files": files,
        "partition_bytes": row["bytes"],
        "puts": puts,
        "gets": gets,
        "requests_usd": (puts * _price("PUT") + gets * _price("GET")) / 1_000,
        "storage_usd": state / 1e9 * _price("storage") / 30,
        "written_tb": epochs * row["changes"] * partitions * results["row_bytes"]
        * row["amplification"] / 1e12,
        "cpu_ms": driver["cpu_ms_base"] + runs * driver["cpu_ms_run"],
        "documents_kb": runs * driver["bytes_run"] / 1e3,
        "memory_mb": files * driver["memory_mb_run"],
    }  # fmt: skip


def _price(what: str) -> float:
    return next(float(v) for k, v in ASSUMED.items() if k.startswith(what) and isinstance(v, float))


def driver_share(results: dict[str, Any]) -> dict[str, float]:
    """What a run, and an epoch, cost the driver: from the oldest pipelines of the simulation."""
    oldest = max(point["epoch"] for point in results["pipelines"])
    points = [point for point in results["pipelines"] if point["epoch"] == oldest]
    large = max(points, key=lambda point: point["busy"])
    merges = next(p for p in results["one_partition"] if p["epoch"] == oldest)["merges"]
    runs = large["busy"] * (1 + merges)
    small = min(points, key=lambda point: point["busy"])
    return {
        **large["requests"],
        "cpu_ms_run": large["cpu_ms"] / runs,
        "cpu_ms_base": max(0.0, small["cpu_ms"] - small["busy"] * large["cpu_ms"] / large["busy"]),
        "bytes_run": large["document_bytes"] / runs,
        "memory_mb_run": large["memory_mb"] / large["runs"],
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def table_where(results: dict[str, Any]) -> str:
    """On what the simulation ran."""
    policy = results["policy"]
    rows = [
        ("date", results["date"]),
        ("commit", results["commit"]),
        ("machine", results["machine"]),
        ("compaction", f"fanout {policy['fanout']}, tiers from {policy['tier_bytes']:,} bytes"),
        ("one partition", f"{results['keys']:,} keys, {results['changes']:,} changes in an epoch"),
        ("a row", f"{results['row_bytes']} bytes"),
        ("peak memory of the simulator", f"{results['peak_mb']:,.0f} MB"),
    ]
    return _table(("what", "value"), rows)


def table_partition(results: dict[str, Any]) -> str:
    """The policy alone."""
    rows = [
        (
            f"{p['epoch']:,}",
            f"{p['layers']:.1f}",
            f"{p['layers_max']}",
            f"{p['amplification']:.1f}",
            f"{p['merges']:.2f}",
        )
        for p in results["one_partition"]
    ]
    head = ("epochs", "layers", "most layers", "times a byte is written", "compactions in an epoch")
    return _table(head, rows)


def table_driver(results: dict[str, Any]) -> str:
    """The driver's share."""
    rows = [
        (
            p["shape"],
            f"{p['epoch']:,}",
            f"{p['runs']:,}",
            f"{p['segments']}",
            f"{p['cpu_ms']:.0f} ms",
            f"{p['document_bytes'] / 1e3:,.0f} kB",
            f"{p['memory_mb']:.0f} MB",
            " / ".join(f"{p['requests'][kind]:.1f}" for kind in ("PUT", "LIST", "GET", "DELETE")),
        )
        for p in results["pipelines"]
        if p["epoch"] in (100, 10_000, 1_000_000)
    ]
    head = (
        "pipeline", "epochs", "runs", "segments", "CPU", "documents written", "memory",
        "PUT / LIST / GET / DELETE",
    )  # fmt: skip
    return _table(head, rows)


def table_paper(results: dict[str, Any]) -> str:
    """Cost and sizes of the large ones."""
    rows = []
    for row in results["paper"]:
        cost = costs(results, row)
        rows.append(
            (
                f"10^{round(math.log10(row['keys']))}",
                f"{row['partitions']:,}",
                f"{row['seconds']} s",
                f"{cost['partition_bytes'] / 1e9:,.2f} GB",
                f"{row['layers']}",
                f"{cost['files']:,.0f}",
                f"{cost['runs']:,.0f}",
                f"{cost['cpu_ms']:,.0f} ms",
                f"{cost['documents_kb']:,.0f} kB",
                f"{cost['memory_mb']:,.0f} MB",
                f"{cost['written_tb']:,.1f} TB",
                f"{cost['puts'] / 1e6:,.1f} M / {cost['gets'] / 1e6:,.1f} M",
                f"${cost['requests_usd']:,.0f} + ${cost['storage_usd']:,.2f}",
            )
        )
    head = (
        "keys", "partitions", "epoch", "state of a partition", "layers", "files", "runs an epoch",
        "driver: CPU in an epoch", "documents in an epoch", "driver: memory",
        "written in a day", "PUT and LIST / GET in a day", "a day: requests + storage",
    )  # fmt: skip
    return _table(head, rows)


def table_assumed(results: dict[str, Any]) -> str:
    """What was assumed."""
    rows = [(name, f"{value:,}" if isinstance(value, int) else f"{value}")
            for name, value in ASSUMED.items()]  # fmt: skip
    rows.append(("keys that change in a second", f"{results['changed_share']:.0e} of all"))
    return _table(("assumption", "value"), rows)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "where": table_where,
    "partition": table_partition,
    "driver": table_driver,
    "assumed": table_assumed,
    "paper": table_paper,
}


def filled(page: str, results: dict[str, Any]) -> str:
    """The page with its tables written again."""
    for name, table in TABLES.items():
        mark = rf"(<!-- table {name} -->\n).*?(<!-- end -->)"
        page, count = re.subn(
            mark, lambda m, t=table: m[1] + t(results) + m[2], page, flags=re.DOTALL  # type: ignore[misc]
        )  # fmt: skip
        if count != 1:
            raise SystemExit(f"draw_scale: the page has {count} places for the table {name}")
    return page


def draw(results: dict[str, Any], theme: str, target: Path) -> None:
    """Four panels over the age of a pipeline."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    back, ink, grid = THEMES[theme]
    colours = COLOURS[theme]
    plt.rcParams.update(
        {
            "svg.hashsalt": "holdfast", "svg.fonttype": "none", "font.size": 9,
            "figure.facecolor": back, "axes.facecolor": back,
            "axes.edgecolor": grid, "axes.labelcolor": ink,
            "text.color": ink, "xtick.color": ink, "ytick.color": ink, "grid.color": grid,
            "axes.spines.top": False, "axes.spines.right": False,
        }
    )  # fmt: skip
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.2), layout="constrained")
    panels: tuple[tuple[str, Callable[[Any], float]], ...] = (
        ("driver's CPU in an epoch (ms)", lambda p: p["cpu_ms"]),
        ("documents written in an epoch (kB)", lambda p: p["document_bytes"] / 1e3),
        ("runs in the checkpoint", lambda p: p["runs"]),
    )
    shapes = [*dict.fromkeys(point["shape"] for point in results["pipelines"])]
    for axis, (title, value) in zip(axes.flat, panels, strict=False):
        for shape, colour in zip(shapes, colours, strict=True):
            points = [point for point in results["pipelines"] if point["shape"] == shape]
            axis.plot(
                [p["epoch"] for p in points], [*map(value, points)], "o-", color=colour,
                label=shape, markersize=3, linewidth=1.5,
            )  # fmt: skip
        axis.set(title=title, xscale="log", yscale="log", xlabel="epochs so far")
        axis.grid(visible=True, linewidth=0.5)
    last = axes.flat[3]
    curve = results["one_partition"]
    for name, label, colour in (
        ("layers", "layers of a partition", colours[0]),
        ("amplification", "times a byte is written", colours[3]),
    ):
        last.plot(
            [p["epoch"] for p in curve], [p[name] for p in curve], "o-", color=colour,
            label=label, markersize=3, linewidth=1.5,
        )  # fmt: skip
    last.set(title="one partition", xscale="log", xlabel="epochs so far", ylim=(0, None))
    last.grid(visible=True, linewidth=0.5)
    last.legend(frameon=False, fontsize=8)
    lines = axes.flat[0].get_lines()
    figure.legend(handles=lines, loc="outside upper center", ncols=len(lines), frameon=False)
    figure.savefig(target, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = target.read_text(encoding="utf-8")
    target.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")


def main(words: list[str]) -> None:
    """Write tables, and pictures unless only tables are asked for."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    if "--tables" not in words:
        for theme in THEMES:
            draw(results, theme, IMAGES / f"scale-{theme}.svg")


if __name__ == "__main__":
    main(sys.argv[1:])
