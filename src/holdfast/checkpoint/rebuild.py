"""Rebuilding a lost catalog from the manifests.

Invariants:
- Only manifests that agree with their own digest and whose files are all there are taken.
- Of two checkpoints for one catalog number, the one with sink outcomes or descendants was
  committed; where neither has any, the user must choose.
- No epoch and no record number is used again: the hint and the outcomes tell of those whose
  checkpoints are gone.
- The new catalog becomes visible with one put-if-absent record; until then nothing has changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.checkpoint.catalog import CatalogState, CatalogWriter, load_catalog, off_lineage
from holdfast.checkpoint.hint import read_hint, write_hint
from holdfast.checkpoint.home import Home
from holdfast.checkpoint.publish import publish
from holdfast.checkpoint.reader import Outcomes, StoreReader, against_outcomes
from holdfast.checkpoint.verify import check_file
from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    AlreadyExistsError,
    CorruptionError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST, sha256_hex
from holdfast.format.findings import errors_of
from holdfast.format.manifest import MANIFEST_BYTES_MAX, Manifest, parse_manifest
from holdfast.format.records import SinkPromise, StoreHeader, Summary, header_bytes
from holdfast.format.validate import validate
from holdfast.ids import CheckpointId, IdSource, RandomIds, Sequence
from holdfast.points import reach
from holdfast.storage.api import Storage
from holdfast.version import __version__

_NONE = Sequence(-1)
# The lost catalog may have had records that no manifest tells of (open, drop, base). A writer that
# outlived it must find its next number below the new base, where records mean nothing.
_LEAP = 1_000


@dataclass(frozen=True)
class Found:
    """A manifest that was found, and what speaks for and against it."""

    summary: Summary
    manifest: Manifest
    confirmed: bool


@dataclass(frozen=True)
class RebuildPlan:
    """What a rebuilt catalog would hold."""

    pipeline: str
    take: tuple[Found, ...] = ()
    leave: Mapping[str, str] = field(default_factory=dict)
    undecided: tuple[CheckpointId, ...] = ()
    head: Sequence = _NONE
    epoch_max: int = -1

    def __str__(self) -> str:
        """The plan as a person reads it."""
        lines = [f"pipeline {self.pipeline}: {len(self.take)} checkpoints found"]
        for found in self.take:
            proof = "confirmed" if found.confirmed else "not confirmed by a later one or a sink"
            lines.append(f"  take epoch {found.summary.epoch} {found.summary.checkpoint}: {proof}")
        lines += [f"  leave {path}: {reason}" for path, reason in self.leave.items()]
        lines += [
            f"  undecided {checkpoint}: name one of these to keep" for checkpoint in self.undecided
        ]
        return "\n".join(lines)


def summarise(manifest: Manifest, data: bytes) -> Summary:
    """The catalog's view of a checkpoint."""
    return Summary(
        checkpoint=manifest.checkpoint,
        epoch=manifest.epoch,
        sequence=manifest.sequence,
        manifest_sha256=sha256_hex(data),
        manifest_bytes=len(data),
        created_us=manifest.created_us,
        fingerprint=manifest.fingerprint,
        parent=manifest.parent,
        label=manifest.label,
        incremental=manifest.incremental,
        rows=manifest.rows,
        keys=manifest.keys,
        processed=manifest.processed,
        bytes_new=manifest.bytes_new,
        bytes_total=manifest.bytes_total,
        sinks=[SinkPromise(name=sink.name, replay=sink.replay) for sink in manifest.sinks],
    )


def plan_rebuild(reader: StoreReader, *, choose: Collection[CheckpointId] = ()) -> RebuildPlan:
    """Look at every manifest and decide what the catalog must have held."""
    outcomes = reader.outcomes()
    found, leave = _scan(reader)
    parents = {manifest.parent for manifest, _ in found.values()}
    by_sequence: dict[int, list[CheckpointId]] = {}
    for checkpoint, (manifest, _) in found.items():
        by_sequence.setdefault(manifest.sequence, []).append(checkpoint)
    take: list[Found] = []
    undecided: list[CheckpointId] = []
    for _, rivals in sorted(by_sequence.items()):
        winners = _winners(rivals, found, outcomes, parents, choose)
        if len(winners) > 1:
            undecided.extend(winners)
        for checkpoint in rivals:
            manifest, data = found[checkpoint]
            if checkpoint not in winners:
                leave[paths.manifest(checkpoint)] = "lost against another one for the same record"
            elif len(winners) == 1:
                confirmed = checkpoint in parents or _has_outcome(checkpoint, manifest, outcomes)
                take.append(Found(summarise(manifest, data), manifest, confirmed))
    hint = read_hint(reader.home)
    numbers = [*_record_numbers(reader.home), *(entry.summary.sequence for entry in take)]
    return RebuildPlan(
        pipeline=reader.home.pipeline,
        take=tuple(_branches(take)),
        leave=leave,
        undecided=tuple(undecided),
        head=Sequence(max([hint.sequence if hint else -1, *numbers], default=-1) + _LEAP),
        epoch_max=max(
            [
                outcomes.epoch_max,
                hint.epoch if hint else -1,
                *(manifest.epoch for manifest, _ in found.values()),
            ]
        ),
    )


def _branches(take: list[Found]) -> list[Found]:
    """What is no ancestor of the newest one was left behind by a rollback or a fallback."""
    if not take:
        return take
    live = [found.summary for found in take]
    gone = {entry.checkpoint for entry in off_lineage(live, live[-1].checkpoint)}
    return [
        replace(found, summary=msgspec.structs.replace(found.summary, abandoned=True))
        if found.summary.checkpoint in gone
        else found
        for found in take
    ]


def _winners(
    rivals: list[CheckpointId],
    found: Mapping[CheckpointId, tuple[Manifest, bytes]],
    outcomes: Outcomes,
    parents: set[CheckpointId | None],
    choose: Collection[CheckpointId],
) -> list[CheckpointId]:
    if len(rivals) == 1:
        return rivals
    for proof in (
        [checkpoint for checkpoint in rivals if checkpoint in choose],
        [c for c in rivals if c in parents or _has_outcome(c, found[c][0], outcomes)],
    ):
        if proof:
            return proof
    return rivals


def _has_outcome(checkpoint: CheckpointId, manifest: Manifest, outcomes: Outcomes) -> bool:
    return any(outcomes.status(checkpoint, sink.name) != "pending" for sink in manifest.sinks)


def _scan(
    reader: StoreReader,
) -> tuple[dict[CheckpointId, tuple[Manifest, bytes]], dict[str, str]]:
    found: dict[CheckpointId, tuple[Manifest, bytes]] = {}
    leave: dict[str, str] = {}
    for entry in reader.home.list(paths.CHECKPOINTS):
        meaning = paths.classify(entry.path)
        if meaning is None or meaning.kind != "manifest" or meaning.checkpoint is None:
            continue
        try:
            data = reader.home.get(entry.path, bytes_max=MANIFEST_BYTES_MAX)
            manifest = parse_manifest(data, entry.path, meaning.checkpoint)
        except CorruptionError as error:
            leave[entry.path] = error.what
            continue
        reason = _unfit(reader, manifest)
        if reason is None:
            found[meaning.checkpoint] = (manifest, data)
        else:
            leave[entry.path] = reason
    return found, leave


def _unfit(reader: StoreReader, manifest: Manifest) -> str | None:
    if manifest.pipeline != reader.home.pipeline:
        return f"belongs to pipeline {manifest.pipeline}"
    wrong = errors_of(validate(manifest))
    if wrong:
        return wrong[0].message
    for file in manifest.files:
        finding = check_file(reader.home.storage, reader.home.file(file), file, deep=False)
        if finding is not None:
            return f"{finding.message}: {file.path}"
    return None


def _record_numbers(home: Home) -> list[int]:
    return [
        meaning.sequence
        for entry in home.list(paths.CATALOG)
        if (meaning := paths.classify(entry.path)) is not None and meaning.sequence is not None
    ]


def rebuild_catalog(
    storage: Storage,
    pipeline: str,
    *,
    choose: Collection[CheckpointId] = (),
    force: bool = False,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> RebuildPlan:
    """Make a new catalog. Refused while the old one can be read, unless forced."""
    clock, ids = clock or SystemClock(), ids or RandomIds()
    reader = StoreReader(Home(storage, paths.pipeline_dir(pipeline)))
    if not force:
        _check_lost(reader)
    plan = plan_rebuild(reader, choose=choose)
    if plan.undecided:
        raise RefusedError(
            "two checkpoints claim the same place in the catalog",
            kind="undecided",
            checkpoints=",".join(plan.undecided),
            remedy="look at both, then name the one to keep (choose)",
        )
    if not plan.take:
        raise CorruptionError(
            "no manifest can be used to rebuild the catalog",
            kind="nothing_to_rebuild",
            pipeline=pipeline,
            left=len(plan.leave),
            remedy="bring the checkpoints directory back from a copy; nothing was changed",
        )
    reach("rebuild.before_record")
    _restore_header(reader, storage, plan, clock)
    state = CatalogState(
        base=plan.head,
        head=plan.head,
        live=tuple(found.summary for found in plan.take),
        epoch_max=plan.epoch_max,
    )
    writer = CatalogWriter(reader.home, storage, state, ids.writer_id(), clock)
    writer.append_base(state.live, rebuilt=True)
    reach("rebuild.after_record")
    # Should this catalog be lost too, the next rebuild must begin above its numbers.
    known, newest = read_hint(reader.home), plan.take[-1].summary
    keep = known is not None and known.epoch >= newest.epoch
    write_hint(
        reader.home,
        storage,
        writer.state,
        known.checkpoint if keep and known else newest.checkpoint,
        known.epoch if keep and known else newest.epoch,
    )
    return plan


def _check_lost(reader: StoreReader) -> None:
    """A catalog that is whole is not replaced."""
    try:
        reader.header()
        state = load_catalog(reader.home)
    except InvalidInputError:
        raise
    except (CorruptionError, NotFoundError):
        return
    if state is not None and not against_outcomes(state, reader.outcomes(), reader.home).damage:
        raise RefusedError(
            "the catalog is whole",
            kind="catalog_whole",
            pipeline=reader.home.pipeline,
            remedy="nothing needs to be rebuilt; force it if you know better",
        )


def _restore_header(reader: StoreReader, storage: Storage, plan: RebuildPlan, clock: Clock) -> None:
    path = reader.home.at(paths.HEADER)
    try:
        reader.header()
    except CorruptionError:
        pass
    except HoldfastError:
        raise
    else:
        return
    manifest = plan.take[-1].manifest
    data = header_bytes(
        StoreHeader(
            format=FORMAT_VERSION, sha256=NO_DIGEST, lineage=manifest.lineage,
            pipeline=manifest.pipeline, created_us=clock.wall_us(),
            vnodes=manifest.topology.vnodes, holdfast=__version__,
        )
    )  # fmt: skip
    try:
        publish(storage, path, data, clock)
    except AlreadyExistsError:
        storage.put(path, data)  # damaged: the manifests agree on what it must say
