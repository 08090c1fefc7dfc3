"""A program as data: sources, steps, sinks and phases, and its text as Python code.

What is unusual about a program is its `edge`: at most one, so that one defect does not hide another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.helpers.fuzz.values import Column, Field

# What may be refused, as long as that happens before anything runs, in all of its programs.
MAY_REFUSE = {
    "reserved_column",
    "collation",
    "nested_map",
    "char",
    "two_sinks",
    "journal_binary",
    "odd_columns",
}
EDGES = (
    "odd_names",
    "decimal_weights",
    "long_min",
    "double_outlier",
    "deviation_outlier",
    "null_weight",
    "reserved_column",
    "collation",
    "nested_map",
    "char",
    "hive",
    "time_zone",
    "journal_payload",
    "two_sinks",
    "two_pipelines",
    "fork_same",
    "lost_output",
    "restore_old",
    "restore_before",
    "fork_upsert",
    "journal_binary",
    "touch",
    "nested_nulls",
    "odd_columns",
    "moved_store",
)
OUTLIERS = {"long_min": "long", "double_outlier": "double", "deviation_outlier": "double"}
# Their outputs change in every epoch, since they count rows.
OUTPUT_EDGES = ("two_pipelines", "fork_same", "lost_output", "restore_old", "fork_upsert")
WEIGHT_EDGES = ("decimal_weights", "null_weight", *OUTLIERS)


@dataclass(frozen=True)
class Source:
    """A directory of files. layout: plain, odd (names), hive (directories), csv."""

    name: str
    fields: tuple[Field, ...]
    weighted: bool
    layout: str = "plain"
    files_max: int = 1

    @property
    def schema(self) -> str:
        texts = [f"{f.column.sql} {f.ddl}" for f in self.fields]
        return ", ".join([*texts, "w bigint"] if self.weighted else texts)

    @property
    def code(self) -> str:
        more = ", weight='w'" if self.weighted else ""
        more += ", format='csv'" if self.layout == "csv" else ""
        return (
            f"p.source({self.name!r}, hf.sources.Files(f'{{home}}/{self.name}', "
            f"schema={self.schema!r}, files_max={self.files_max}{more}))"
        )


@dataclass(frozen=True)
class Node:
    """One step: `holdfast` and `batch` are expressions over the names of `needs`."""

    name: str
    needs: tuple[str, ...]
    holdfast: str
    batch: str
    columns: tuple[Column, ...]
    changes: bool
    view: bool = False


@dataclass(frozen=True)
class Sink:
    """kind: changelog, upsert, function, journal. `path` is its name unless two share one."""

    name: str
    kind: str
    node: str
    path: str


File = list[tuple[tuple[int, ...], int | None]]


@dataclass
class Phase:
    """New files by source, then a run: `action` says what happens besides."""

    files: dict[str, list[File]]
    action: str = "run"
    partitions: int = 2
    crash: tuple[str, int] | None = None


@dataclass
class Program:
    """Everything that a seed gives."""

    seed: int
    edge: str
    sources: list[Source]
    nodes: list[Node]
    sinks: list[Sink]
    phases: list[Phase] = field(default_factory=list)
    zone: str = "UTC"

    @property
    def needed(self) -> list[Node]:
        """The nodes that a sink needs, in order."""
        wanted = {sink.node for sink in self.sinks}
        for node in reversed(self.nodes):
            if node.name in wanted:
                wanted |= {*node.needs}
        return [node for node in self.nodes if node.name in wanted]

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def code(self) -> str:
        """The pipeline as Python, with `p` a pipeline and `home` and `out` directories."""
        used = {name for node in self.needed for name in node.needs}
        used |= {sink.node for sink in self.sinks}
        lines = [f"{s.name} = {s.code}" for s in self.sources if s.name in used]
        lines += [f"{n.name} = {n.holdfast}" for n in self.needed]
        lines += [f"p.sink({s.name!r}, {s.node}, {sink_code(s)})" for s in self.sinks]
        return "\n".join(lines)


def sink_code(sink: Sink) -> str:
    """The connector of a sink as Python."""
    place = f"f'{{out}}/{sink.path}'"
    return {
        "changelog": f"hf.sinks.Parquet({place})",
        "upsert": f"hf.sinks.Parquet({place}, mode='upsert')",
        "function": f"hf.sinks.Function(written({place}))",
        "journal": f"hf.sinks.Journal({place}, entity='=e', kind='=row')",
    }[sink.kind]
