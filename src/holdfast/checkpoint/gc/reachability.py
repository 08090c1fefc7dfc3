"""Sweeping: which files may go. Reachability, planned purely and then executed.

Invariants:
- A file goes only when Holdfast could have written it and no live checkpoint names it.
- The manifest of every live checkpoint must be readable, or the sweep does not begin.
- A damaged catalog stops the sweep: it may have forgotten a checkpoint that is needed.
- The first failed delete stops the sweep; what is left is found again by the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.errors import HoldfastError
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.manifest import Manifest
from holdfast.ids import CheckpointId
from holdfast.storage.base import Entry, Storage


@dataclass(frozen=True)
class SweepPlan:
    """Files that go, by class, and foreign files that stay."""

    delete: tuple[Entry, ...] = ()
    classes: Mapping[str, int] = field(default_factory=dict)
    foreign: tuple[Entry, ...] = ()
    shared: tuple[Entry, ...] = ()

    @property
    def bytes(self) -> int:
        """What deleting frees."""
        return sum(entry.size for entry in self.delete)

    def __str__(self) -> str:
        """The plan as a person reads it."""
        lines = [f"delete {len(self.delete)} files, {self.bytes} bytes"]
        lines += [f"  {kind}: {size} bytes" for kind, size in sorted(self.classes.items())]
        lines += [f"  foreign, stays: {entry.path} ({entry.size} bytes)" for entry in self.foreign]
        return "\n".join(lines)


@dataclass
class SweepReport:
    """What a sweep did."""

    plan: SweepPlan
    deleted: int = 0
    bytes: int = 0
    dropped: tuple[CheckpointId, ...] = ()
    compacted: int = 0
    released: tuple[str, ...] = ()
    dry_run: bool = False
    error: HoldfastError | None = None


def reachable(manifests: Iterable[Manifest], pipeline: str) -> set[str]:
    """Paths of this pipeline that these checkpoints need."""
    needed: set[str] = set()
    for manifest in manifests:
        needed.add(paths.manifest(manifest.checkpoint))
        needed.update(e.path for e in manifest.files if e.pipeline in (None, pipeline))
    return needed


def plan_sweep(
    listing: Iterable[Entry],
    state: CatalogState,
    needed: Collection[str],
    *,
    busy: Collection[CheckpointId] = (),
    sharers_unknown: bool = False,
) -> SweepPlan:
    """Sort what is stored into what goes and what stays.

    `busy` are drafts in progress: nothing below them is touched. `sharers_unknown`: a listed
    checkpoint cannot be read, so any file of a checkpoint that is not listed may be one of its own.
    """
    live = {entry.checkpoint for entry in state.live}
    live_epochs = {entry.epoch for entry in state.live}
    delete: list[Entry] = []
    foreign: list[Entry] = []
    shared: list[Entry] = []
    classes: dict[str, int] = {}
    for entry in listing:
        meaning = paths.classify(entry.path)
        if meaning is None:
            foreign.append(entry)
            continue
        go = None
        if meaning.kind == "temporary":
            go = "temporary"
        elif meaning.kind == "record" and meaning.sequence is not None:
            go = "old catalog record" if meaning.sequence < state.base else None
        elif meaning.kind == "outcome":
            go = "outcome of a dropped checkpoint" if meaning.epoch not in live_epochs else None
        elif meaning.checkpoint is not None and meaning.checkpoint not in busy:
            unlisted = meaning.checkpoint not in live
            kept = entry.path in needed
            kept |= sharers_unknown and unlisted and meaning.kind != "manifest"
            if kept:
                if unlisted:
                    shared.append(entry)
            else:
                go = f"unreferenced {meaning.kind}"
        if go is not None:
            delete.append(entry)
            classes[go] = classes.get(go, 0) + entry.size
    return SweepPlan(tuple(delete), classes, tuple(foreign), tuple(shared))


def run_sweep(
    directory: PipelineDirectory, storage: Storage, plan: SweepPlan, prefix: str
) -> SweepReport:
    """Delete what the plan says; the first failure ends it and is reported, not raised.

    Manifests go first: a half-deleted checkpoint must not look like one that could be rebuilt.
    Catalog records go one by one in ascending order (see the catalog's invariants).
    """
    report = SweepReport(plan)
    points = _POINTS[prefix]
    if plan.delete:
        failpoint(points[0]) if points[0] else None
    try:
        for batch in _batches(plan.delete):
            storage.delete_many([directory.at(entry.path) for entry in batch])
            if report.deleted == 0:
                failpoint(points[1])
            report.deleted += len(batch)
            report.bytes += sum(entry.size for entry in batch)
    except HoldfastError as error:
        report.error = error
    return report


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Manifests, then other files in handfuls, then catalog records one by one."""
    manifests = [entry for entry in entries if entry.path.endswith("/manifest.json")]
    records = [entry for entry in entries if entry.path.startswith(f"{paths.CATALOG}/")]
    others = [entry for entry in entries if entry not in manifests and entry not in records]
    if manifests:
        yield manifests
    for start in range(0, len(others), _BATCH):
        yield others[start : start + _BATCH]
    for record in sorted(records, key=lambda entry: entry.path):
        yield [record]


_BATCH = 200
_POINTS = {
    "cleanup": ("cleanup.before_delete", "cleanup.after_delete"),
    "gc": (None, "gc.after_first_delete"),
}
