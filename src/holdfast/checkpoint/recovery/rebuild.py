"""Rebuilding a lost catalog from the manifests.

Invariants:
- Only manifests that agree with their own digest and whose files are all there are taken.
- Of two checkpoints for one catalog number, the one with sink outcomes or descendants was
  committed; where neither has any, the user must choose. Where both have, records were lost and
  their numbers used again: both were committed, and the later epoch is the newer one.
- No epoch and no record number is used again: the hint and the outcomes tell of those whose
  checkpoints are gone.
- The new catalog becomes visible with one put-if-absent record; until then nothing has changed.
- A writer that lives is fenced by that record, or its own record comes first and everything is
  looked at again: what it was told is committed is part of the new catalog.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.checkpoint.commit.catalog import (
    CatalogState,
    CatalogWriter,
    lineage,
    load_catalog,
    off_lineage,
    read_hint,
    record_numbers,
    write_hint,
)
from holdfast.checkpoint.commit.conditional_put import publish
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reader import Outcomes, StoreReader
from holdfast.checkpoint.recovery.witness import SHRANK, Witnesses, against, call_witnesses, strays
from holdfast.checkpoint.segments import load_segments
from holdfast.checkpoint.verify import check_file
from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST, sha256_hex
from holdfast.format.documents import (
    RECORD_BYTES_MAX,
    BaseBody,
    DropBody,
    Latest,
    Pin,
    SinkPromise,
    StoreHeader,
    Summary,
    header_bytes,
    parse_record,
)
from holdfast.format.findings import errors_of
from holdfast.format.manifest import MANIFEST_BYTES_MAX, Manifest, parse_manifest
from holdfast.format.validate import validate
from holdfast.ids import CheckpointId, IdSource, RandomIds, Sequence
from holdfast.storage.base import Storage
from holdfast.version import __version__

_NONE = Sequence(-1)
# The end of a lost catalog may have had records that no manifest tells of (open, drop, base). A
# writer that outlived it must find its next number below the new base, where records mean nothing.
_LEAP = 1_000
_TRIES = 20


@dataclass(frozen=True)
class FoundManifest:
    """A manifest that was found, and what speaks for and against it."""

    summary: Summary
    manifest: Manifest
    confirmed: bool


@dataclass(frozen=True)
class RebuildPlan:
    """What a rebuilt catalog would hold."""

    pipeline: str
    take: tuple[FoundManifest, ...] = ()
    leave: Mapping[str, str] = field(default_factory=dict)
    undecided: tuple[CheckpointId, ...] = ()
    head: Sequence = _NONE
    epoch_max: int = -1
    leap: bool = True
    newest: Sequence = _NONE

    def __str__(self) -> str:
        """The plan as a person reads it."""
        lines = [f"pipeline {self.pipeline}: {len(self.take)} checkpoints found"]
        for entry in self.take:
            proof = "confirmed" if entry.confirmed else "not confirmed by a later one or a sink"
            lines.append(f"  take epoch {entry.summary.epoch} {entry.summary.checkpoint}: {proof}")
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
        counts=manifest.counts,
    )


def dropped_but_whole(reader: StoreReader, pin: Pin) -> Summary | None:
    """What a pin holds although no catalog lists it, if all of it is still there."""
    path = paths.manifest(pin.checkpoint)
    try:
        data = reader.directory.get(path, bytes_max=MANIFEST_BYTES_MAX)
        manifest = parse_manifest(data, reader.directory.at(path), pin.checkpoint)
        manifest = load_segments(reader.directory, manifest)
    except (NotFoundError, CorruptionError):
        return None
    summary = summarise(manifest, data)
    whole = summary.manifest_sha256 == pin.manifest_sha256 and not any(
        check_file(reader.directory.storage, reader.directory.file(entry), entry, deep=False)
        for entry in manifest.files
    )
    # Older than the current one, and perhaps from another branch: never chosen by itself.
    return msgspec.structs.replace(summary, abandoned=True) if whole else None


def lost_but_whole(
    witnesses: Witnesses, state: CatalogState, reader: StoreReader
) -> tuple[Summary, ...]:
    """Checkpoints whose records the catalog has lost, and that a rebuild could bring back."""
    if not any(finding.kind == SHRANK for finding in state.damage):
        return ()
    candidates = []
    for manifest, data in strays(witnesses, state, reader):
        # Older ones are what a drop or a crash has left: the records of their numbers are there.
        if manifest.sequence < state.head:
            continue
        try:
            whole = load_segments(reader.directory, manifest)
        except CorruptionError:
            continue
        if _unfit(reader, whole) is None:
            candidates.append(msgspec.structs.replace(summarise(whole, data), abandoned=True))
    return tuple(sorted(candidates, key=lambda summary: summary.sequence))


def plan_rebuild(reader: StoreReader, *, choose: Collection[CheckpointId] = ()) -> RebuildPlan:
    """Look at every manifest and decide what the catalog must have held.

    A commit that comes between looks like one whose record was lost, and of a writer that retires
    what was listed nothing may be left: then all is looked at again.
    """
    for _ in range(_TRIES):
        numbers = record_numbers(reader.directory)
        plan = _look(reader, choose)
        if (plan.take and not plan.leap) or record_numbers(reader.directory) == numbers:
            return plan
    raise _busy(reader.directory.pipeline)


def _look(reader: StoreReader, choose: Collection[CheckpointId]) -> RebuildPlan:
    # The hint before the records, the records before all else: whatever a writer that lives does
    # in between takes the number that the plan is made for.
    hint = read_hint(reader.directory)
    there = record_numbers(reader.directory)
    outcomes = reader.outcomes()
    manifests, leave = _scan(reader)
    _leave_dropped(reader, there, manifests, leave)
    parents = {manifest.parent for manifest, _ in manifests.values()}
    by_sequence: dict[int, list[CheckpointId]] = {}
    for checkpoint, (manifest, _) in manifests.items():
        by_sequence.setdefault(manifest.sequence, []).append(checkpoint)
    take: list[FoundManifest] = []
    undecided: list[CheckpointId] = []
    for _, rivals in sorted(by_sequence.items()):
        proven = {c for c in rivals if c in parents or _has_outcome(c, manifests[c][0], outcomes)}
        winners = _winners(rivals, proven, choose)
        decided = len(winners) == 1 or proven.issuperset(winners)
        if not decided:
            undecided.extend(winners)
        for checkpoint in rivals:
            manifest, data = manifests[checkpoint]
            if checkpoint not in winners:
                leave[paths.manifest(checkpoint)] = "lost against another one for the same record"
            elif decided:
                take.append(
                    FoundManifest(summarise(manifest, data), manifest, checkpoint in proven)
                )
    # A number is used again where records were lost; an epoch never is.
    take.sort(key=lambda entry: entry.summary.epoch)
    leap = _end_is_lost(there, hint, take)
    numbers = [*there, *(entry.summary.sequence for entry in take)] if leap else there
    return RebuildPlan(
        pipeline=reader.directory.pipeline,
        take=tuple(_branches(take)),
        leave=leave,
        undecided=tuple(undecided),
        leap=leap,
        newest=there[-1] if there else _NONE,
        head=Sequence(
            max([hint.sequence if hint else -1, *numbers], default=-1) + (_LEAP if leap else 0)
        ),
        epoch_max=max(
            [
                outcomes.epoch_max,
                hint.epoch if hint else -1,
                *(manifest.epoch for manifest, _ in manifests.values()),
            ]
        ),
    )


def _end_is_lost(numbers: list[Sequence], hint: Latest | None, take: list[FoundManifest]) -> bool:
    """Whether records after the newest one that is there may have been lost.

    A manifest for the very next number that nothing confirms is a commit under way.
    """
    if not numbers or hint is None or hint.sequence > numbers[-1]:
        return True
    return any(
        entry.summary.sequence > numbers[-1] + (0 if entry.confirmed else 1) for entry in take
    )


def _leave_dropped(
    reader: StoreReader,
    numbers: list[Sequence],
    manifests: dict[CheckpointId, tuple[Manifest, bytes]],
    leave: dict[str, str],
) -> None:
    """What a readable record has dropped may be losing its files at this moment."""
    dropped: set[CheckpointId] = set()
    contents = reader.directory.get_many(
        [paths.record(n) for n in numbers], bytes_max=RECORD_BYTES_MAX
    )
    for number, content in zip(numbers, contents, strict=True):
        if isinstance(content, HoldfastError):
            continue
        try:
            body = parse_record(content, reader.directory.at(paths.record(number)), number).body
        except CorruptionError:
            continue
        if isinstance(body, DropBody):
            dropped.update(body.checkpoints)
        elif isinstance(body, BaseBody):
            dropped.difference_update(summary.checkpoint for summary in body.live)
    dropped &= manifests.keys() - {pin.checkpoint for pin in reader.pins()}
    if len(dropped) == len(manifests):
        return  # rather one that was given up than none at all
    for checkpoint in dropped:
        del manifests[checkpoint]
        leave[paths.manifest(checkpoint)] = "it was dropped"


def _branches(take: list[FoundManifest]) -> list[FoundManifest]:
    """What is no ancestor of the newest one was left behind by a rollback or a fallback.

    So was what nothing confirms, however old: an overtaken writer may have left it, and its tokens
    must not be published.
    """
    if not take:
        return take
    live = [found.summary for found in take]
    off_branch = {entry.checkpoint for entry in off_lineage(live, live[-1].checkpoint)}
    chain = lineage(live, live[-1].checkpoint)
    return [
        replace(found, summary=msgspec.structs.replace(found.summary, abandoned=True))
        if found.summary.checkpoint in off_branch
        or (not found.confirmed and found.summary.checkpoint not in chain)
        else found
        for found in take
    ]


def _winners(
    rivals: list[CheckpointId], proven: Collection[CheckpointId], choose: Collection[CheckpointId]
) -> list[CheckpointId]:
    """Of checkpoints for one record number, those that were committed, as far as it is known."""
    if len(rivals) == 1:
        return rivals
    for proof in (choose, proven):
        chosen = [checkpoint for checkpoint in rivals if checkpoint in proof]
        if chosen:
            return chosen
    return rivals


def _has_outcome(checkpoint: CheckpointId, manifest: Manifest, outcomes: Outcomes) -> bool:
    return any(outcomes.status(checkpoint, sink.name) != "pending" for sink in manifest.sinks)


def _scan(
    reader: StoreReader,
) -> tuple[dict[CheckpointId, tuple[Manifest, bytes]], dict[str, str]]:
    manifests: dict[CheckpointId, tuple[Manifest, bytes]] = {}
    leave: dict[str, str] = {}
    for entry in reader.directory.list(paths.CHECKPOINTS):
        meaning = paths.classify(entry.path)
        if meaning is None or meaning.kind != "manifest" or meaning.checkpoint is None:
            continue
        try:
            data = reader.directory.get(entry.path, bytes_max=MANIFEST_BYTES_MAX)
            manifest = parse_manifest(data, entry.path, meaning.checkpoint)
            manifest = load_segments(reader.directory, manifest)
        except NotFoundError:
            continue  # a writer that lives has just dropped it
        except CorruptionError as error:
            leave[entry.path] = error.what
            continue
        reason = _unfit(reader, manifest)
        if reason is None:
            manifests[meaning.checkpoint] = (manifest, data)
        else:
            leave[entry.path] = reason
    return manifests, leave


def _unfit(reader: StoreReader, manifest: Manifest) -> str | None:
    if manifest.pipeline != reader.directory.pipeline:
        return f"belongs to pipeline {manifest.pipeline}"
    errors = errors_of(validate(manifest))
    if errors:
        return errors[0].message
    for file in manifest.files:
        finding = check_file(
            reader.directory.storage, reader.directory.file(file), file, deep=False
        )
        if finding is not None:
            return f"{finding.message}: {file.path}"
    return None


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
    reader = StoreReader(PipelineDirectory(storage, paths.pipeline_dir(pipeline)))
    for _ in range(_TRIES):
        if not force:
            _check_lost(reader)
        plan = _decided(reader, choose)
        failpoint("rebuild.before_record")
        try:
            if _write(reader, storage, plan, clock, ids):
                return plan
            force = True  # a new catalog is there, but a commit that came between is not in it
        except FencedError:
            continue  # a writer lives: what it has done since belongs into the catalog, too
    raise _busy(pipeline)


def _busy(pipeline: str) -> ConflictError:
    return ConflictError(
        "somebody writes to the catalog faster than it can be rebuilt",
        kind="busy",
        pipeline=pipeline,
        remedy="stop the pipeline first; nothing was changed",
    )


def _decided(reader: StoreReader, choose: Collection[CheckpointId]) -> RebuildPlan:
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
            pipeline=reader.directory.pipeline,
            left=len(plan.leave),
            remedy="bring the checkpoints directory back from a copy; nothing was changed",
        )
    return plan


def _write(
    reader: StoreReader, storage: Storage, plan: RebuildPlan, clock: Clock, ids: IdSource
) -> bool:
    """Put the base record; False when a writer committed meanwhile, so that it is not complete."""
    _restore_header(reader, storage, plan, clock)
    state = CatalogState(
        base=plan.head,
        head=plan.head,
        live=tuple(entry.summary for entry in plan.take),
        epoch_max=plan.epoch_max,
    )
    writer = CatalogWriter(reader.directory, storage, state, ids.writer_id(), clock)
    complete = writer.replace_all(state.live, planned_from=plan.newest)
    failpoint("rebuild.after_record")
    # Should this catalog be lost too, the next rebuild must begin above its numbers.
    known, newest = read_hint(reader.directory), plan.take[-1].summary
    keep = known is not None and known.epoch >= newest.epoch
    write_hint(
        reader.directory,
        storage,
        writer.state,
        known.checkpoint if keep and known else newest.checkpoint,
        known.epoch if keep and known else newest.epoch,
    )
    return complete


def _check_lost(reader: StoreReader) -> None:
    """A catalog that is whole is not replaced."""
    witnesses = call_witnesses(reader)
    try:
        reader.header()
        state = load_catalog(reader.directory)
    except InvalidInputError:
        raise
    except (CorruptionError, NotFoundError):
        return
    if state is not None and not against(witnesses, state, reader.outcomes(), reader).damage:
        raise RefusedError(
            "the catalog is whole",
            kind="catalog_whole",
            pipeline=reader.directory.pipeline,
            remedy="nothing needs to be rebuilt; force it if you know better",
        )


def _restore_header(reader: StoreReader, storage: Storage, plan: RebuildPlan, clock: Clock) -> None:
    path = reader.directory.at(paths.HEADER)
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
            format=FORMAT_VERSION,
            sha256=NO_DIGEST,
            lineage=manifest.lineage,
            pipeline=manifest.pipeline,
            created_us=clock.wall_us(),
            vnodes=manifest.topology.vnodes,
            holdfast=__version__,
        )
    )
    try:
        publish(storage, path, data, clock)
    except AlreadyExistsError:
        storage.put(path, data)  # damaged: the manifests agree on what it must say
