"""Sync: make another store a replica of a pipeline, copying only what is missing there.

Invariants:
- The destination is a valid store at every moment: the old replica until one put-if-absent record,
  the new replica after it. Files and manifests are there, verified and durable, before that
  record. Outcomes and pins follow it: an outcome of an epoch that the catalog does not know would
  prove a loss, and a token without an outcome is only published again, which every sink bears.
- That record is a base with all live checkpoints, one number after the source's newest record, and
  says by its `previous` which record that was. Every field follows from the two stores, so that
  syncs that race or begin again write the same bytes.
- A destination is replaced only when its own newest record is part of the source's history, or when
  nobody but a sync has written to it. Another lineage, or a writer of its own, is refused.
- The source is only read.

Decision: docs/adr/0034-sync-by-one-base-record.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.checkpoint.commit.catalog import CatalogState, hint_bytes, record_numbers
from holdfast.checkpoint.commit.conditional_put import publish
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.gc.reachability import SweepPlan, plan_sweep, reachable, run_sweep
from holdfast.checkpoint.reader import StoreReader
from holdfast.checkpoint.recovery.rebuild import dropped_but_whole
from holdfast.checkpoint.replication.copy import Copier, ExpectedFile, read_back
from holdfast.checkpoint.replication.history import (
    EncodedRecord,
    Ends,
    check_replaceable,
    first_record,
    next_record,
)
from holdfast.clock import Clock, SystemClock
from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptionError,
    HoldfastError,
    NotFoundError,
    RefusedError,
)
from holdfast.format import paths
from holdfast.format.documents import (
    RECORD_BYTES_MAX,
    SMALL_BYTES_MAX,
    BaseBody,
    Summary,
    parse_record,
    pin_bytes,
)
from holdfast.format.manifest import MANIFEST_BYTES_MAX, Manifest
from holdfast.ids import CheckpointId
from holdfast.storage.base import Entry, Lease, Storage, StorageReader

_TRIES = 5
_MOVED = "target_moved"
_LOOK_AGAIN = ("not_found", "missing", "retired", "target_written", _MOVED)
_OLD_US = 86_400_000_000
Progress = Callable[[int, int], None]


@dataclass
class SyncReport:
    """What a sync did."""

    pipeline: str
    checkpoints: int = 0
    new_checkpoints: int = 0
    files_copied: int = 0
    bytes_copied: int = 0
    files_present: int = 0
    bytes_present: int = 0
    pins: int = 0
    pins_only_there: tuple[str, ...] = ()
    removed_files: int = 0
    removed_bytes: int = 0
    up_to_date: bool = False
    notes: list[str] = field(default_factory=list)


def sync_pipeline(
    source: StorageReader,
    target: Storage,
    pipeline: str,
    *,
    deep: bool = False,
    prune: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> SyncReport:
    """Bring `target` to where `source` stands.

    deep: hash also what an earlier sync has verified. prune: remove savepoints that only the
    target has. A source that is being written to is read again when files vanish meanwhile.
    """
    clock = clock or SystemClock()
    name = paths.pipeline_dir(pipeline)
    there = StoreReader(PipelineDirectory(source, name))
    here = StoreReader(PipelineDirectory(target, name))
    if source.url == target.url:
        raise RefusedError(
            "source and destination are the same store", kind="same_store", url=source.url
        )
    held = _Held(target, here)
    try:
        if _started(here):
            held.take()
        for attempt in range(_TRIES):
            work = _Sync(
                there,
                here,
                target,
                clock,
                held,
                deep=deep,
                prune=prune,
                again=attempt > 0,
                progress=progress,
            )
            try:
                return work.run()
            except (NotFoundError, CorruptionError, ConflictError) as error:
                # The source's writer may have collected what was being copied, or another sync
                # may have come first: look again.
                if error.kind not in _LOOK_AGAIN:
                    raise
                if attempt + 1 == _TRIES:
                    raise _given_up(error, moved=there.head() != work.seen) from error
        raise AssertionError("unreachable")
    finally:
        held.release()


class _Held:
    """The destination's lock, where the platform has locks; taken once."""

    def __init__(self, target: Storage, here: StoreReader) -> None:
        self._target, self._path = target, here.directory.at(paths.LOCK)
        self._lease: Lease | None = None

    def take(self) -> None:
        if self._lease is None:
            self._lease = self._target.exclusive(self._path, "sync")

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()


def _given_up(error: HoldfastError, *, moved: bool) -> HoldfastError:
    if isinstance(error, ConflictError) and error.kind != _MOVED:
        return error
    if not moved and error.kind != _MOVED:
        return _missing(error)
    return ConflictError(
        "source or destination change faster than they can be compared",
        kind="busy",
        reason=error.kind,
        remedy="try again; what was copied stays, and only the rest is copied then",
    )


def _missing(error: HoldfastError) -> CorruptionError:
    return CorruptionError(
        "a file of the source is missing",
        kind="missing",
        path=error.facts.get("path"),
        remedy="run `holdfast verify` on the source; nothing of it was published",
    )


def _started(here: StoreReader) -> bool:
    """Whether a header is there: before it is, not even a lock file is made."""
    try:
        here.header()
    except NotFoundError:
        return False
    return True


class _Sync:
    """One look at the source, carried over."""

    def __init__(
        self,
        there: StoreReader,
        here: StoreReader,
        target: Storage,
        clock: Clock,
        held: _Held,
        *,
        deep: bool,
        prune: bool,
        again: bool,
        progress: Progress | None,
    ) -> None:
        self._there, self._here, self._target, self._clock = there, here, target, clock
        self._held = held
        self._deep, self._prune, self._again, self._progress = deep, prune, again, progress
        self.seen: int | None = None  # the source's newest record
        self._report = SyncReport(pipeline=there.directory.pipeline)

    def run(self) -> SyncReport:
        """Check, copy, publish, tidy up."""
        header = self._there.header()
        ends = self._look(header.lineage)
        if ends.target_head is None:
            self._begin()
            ends = self._look(header.lineage)
        known = {s.checkpoint: s.manifest_sha256 for s in ends.target.live}
        new = [
            summary
            for summary in ends.source.live
            if self._deep or self._again or known.get(summary.checkpoint) != summary.manifest_sha256
        ]
        self._report.checkpoints = len(ends.source.live)
        self._report.new_checkpoints = sum(s.checkpoint not in known for s in ends.source.live)
        self._copy_files(ends, [self._there.manifest(summary) for summary in new])
        self._copy_manifests(new)
        live = self._live(ends)
        record = next_record(ends, live)
        if record is None:
            self._report.up_to_date = self._report.files_copied == 0
        else:
            path = self._here.directory.at(paths.record(record.sequence))
            try:
                publish(self._target, path, record.data, self._clock)
            except AlreadyExistsError as error:
                raise self._overtaken(path) from error
        self._check_no_writer(ends, record)
        self._check_alone(ends, record)
        self._finish(ends, live)
        self._check_alone(ends, record)
        return self._report

    def _look(self, lineage: str) -> Ends:
        ends = Ends.look(self._there, self._here)
        self.seen = ends.source.head
        check_replaceable(ends, lineage)
        self._check_source(ends)
        return ends

    def _check_no_writer(self, ends: Ends, record: EncodedRecord | None) -> None:
        """A pipeline that wrote to the replica meanwhile has been leapt over: that is said.

        Its checkpoints are still there, and a rebuild lists them again.
        """
        if record is None:
            return
        directory = self._here.directory
        for number in record_numbers(directory):
            if not ends.target.head < number < record.sequence:
                continue
            try:
                data = directory.get(paths.record(number), bytes_max=RECORD_BYTES_MAX)
                body = parse_record(data, directory.at(paths.record(number)), number).body
            except (NotFoundError, CorruptionError):
                continue
            if not isinstance(body, BaseBody) or not body.synced:
                raise ConflictError(
                    "a pipeline wrote to the destination while it was made a replica",
                    kind="leapt_over",
                    path=directory.at(paths.record(number)),
                    remedy="stop it, then run `holdfast rebuild-catalog --force` on the "
                    "destination: what it committed is still there",
                )

    def _check_alone(self, ends: Ends, record: EncodedRecord | None) -> None:
        """Another sync may have removed what this one counted on: then everything is looked at.

        Between the record that was found and the one that was written, there must be no other.
        """
        numbers = {int(number) for number in record_numbers(self._here.directory)}
        newest = int(record.sequence if record else ends.target.head)
        between = {n for n in numbers if n > ends.target.head and n != newest}
        if between or newest not in numbers:
            raise ConflictError("another sync came between", kind=_MOVED, records=len(between))

    def _overtaken(self, path: str) -> ConflictError:
        return ConflictError(
            "somebody wrote to the destination during the sync",
            kind="target_written",
            path=path,
            remedy="stop the writer there; its checkpoints are untouched",
        )

    def _check_source(self, ends: Ends) -> None:
        """Only a store that is whole is worth copying."""
        if ends.source.damage:
            raise CorruptionError(
                "the source's catalog is damaged",
                kind="catalog_damaged",
                path=ends.source.damage[0].path,
                remedy="run `holdfast rebuild-catalog` on the source first; nothing was copied",
            )

    def _begin(self) -> None:
        """Header and an empty catalog: from here on there is a valid, empty store."""
        directory = self._here.directory
        data = self._there.directory.get(paths.HEADER, bytes_max=SMALL_BYTES_MAX)
        publish(self._target, directory.at(paths.HEADER), data, self._clock)
        self._held.take()
        record = first_record(self._there)
        try:
            publish(
                self._target, directory.at(paths.record(record.sequence)), record.data, self._clock
            )
        except AlreadyExistsError as error:
            raise self._overtaken(directory.at(paths.record(record.sequence))) from error

    # Copying

    def _copy_files(self, ends: Ends, manifests: list[Manifest]) -> None:
        directory = self._here.directory
        wanted = {
            directory.file(entry): ExpectedFile(entry.size, entry.sha256)
            for manifest in manifests
            for entry in manifest.files
        }
        sizes = (
            {directory.at(e.path): e.size for e in directory.list(paths.CHECKPOINTS)}
            if wanted
            else {}
        )
        present = {path for path, expected in wanted.items() if sizes.get(path) == expected.size}
        verified = set() if self._deep else self._verified(ends, wanted, present)
        own = f"{directory.pipeline}/"
        copier = Copier(self._there.directory.storage, self._target, self._progress)
        for path, expected in wanted.items():
            if not path.startswith(own):
                self._check_shared(path, expected)
            elif path in verified:
                copier.skip(expected)
            else:
                copier.add(path, expected, present=path in sizes)
        copied = copier.run()
        report = self._report
        report.files_copied, report.bytes_copied = copied.files, copied.bytes
        report.files_present, report.bytes_present = copied.files_present, copied.bytes_present

    def _verified(self, ends: Ends, wanted: dict[str, ExpectedFile], present: set[str]) -> set[str]:
        """Of the files that are present, those that a finished sync has verified.

        They are the ones that a live checkpoint there names; the newest ones name most of them.
        """
        found: set[str] = set()
        for summary in reversed(ends.target.live):
            if found >= present:
                break
            try:
                files = self._here.manifest(summary).files
            except CorruptionError:
                continue
            named = {self._here.directory.file(e): e.sha256 for e in files}
            found |= {p for p in present & named.keys() if named[p] == wanted[p].sha256}
        return found

    def _check_shared(self, path: str, expected: ExpectedFile) -> None:
        """A fork's files of another pipeline must be there with that pipeline, not without it."""
        try:
            whole = self._target.stat(path).size == expected.size
        except NotFoundError:
            whole = False
        if not whole:
            origin = path.split("/", 1)[0]
            raise RefusedError(
                "the pipeline shares files with another one that is not at the destination",
                kind="origin_missing",
                pipeline=self._there.directory.pipeline,
                origin=origin,
                path=path,
                remedy=f"sync {origin} first",
            )

    def _copy_manifests(self, summaries: list[Summary]) -> None:
        """Manifests, read back, and then made durable at once."""
        directory, new = self._here.directory, []
        for summary in summaries:
            path = paths.manifest(summary.checkpoint)
            data = self._there.directory.get(path, bytes_max=MANIFEST_BYTES_MAX)
            if _bytes_of(self._here, path, MANIFEST_BYTES_MAX) != data:
                self._target.put(directory.at(path), data, durable=False)
                read_back(self._target, directory.at(path), data)
                new.append(directory.at(path))
        self._target.barrier(new)

    def _copy_outcomes(self, epochs: Iterable[int]) -> None:
        wanted = set(epochs)
        there = {e.path for e in self._here.directory.list(paths.OUTCOMES)}
        for entry in self._there.directory.list(paths.OUTCOMES):
            meaning = paths.classify(entry.path)
            if meaning is None or meaning.epoch not in wanted or entry.path in there:
                continue
            data = self._there.directory.get(entry.path, bytes_max=SMALL_BYTES_MAX)
            publish(self._target, self._here.directory.at(entry.path), data, self._clock)

    def _live(self, ends: Ends) -> tuple[Summary, ...]:
        """What the replica lists: all of the source, and what only a savepoint there holds.

        A savepoint that was confirmed while the sync before gave its checkpoint up is among them.
        """
        live = {summary.checkpoint: summary for summary in ends.source.live}
        for pin in self._here.pins():
            if pin.checkpoint not in live:
                held = ends.target.find(pin.checkpoint) or dropped_but_whole(self._here, pin)
                if held is not None:
                    live[pin.checkpoint] = held
        return tuple(sorted(live.values(), key=lambda s: s.sequence))

    # After the record

    def _finish(self, ends: Ends, live: tuple[Summary, ...]) -> None:
        """Outcomes, pins, the hint, and then what the replica no longer needs."""
        self._copy_outcomes({summary.epoch for summary in ends.source.live})
        self._copy_pins({summary.checkpoint for summary in live})
        state = self._here.catalog()
        self._hint(state)
        plan = self._plan_sweep(state, ends.target.live)
        swept = run_sweep(self._here.directory, self._target, plan, "gc")
        self._report.removed_files, self._report.removed_bytes = swept.deleted, swept.bytes
        if swept.error is not None:
            self._report.notes.append(f"not everything old could be removed: {swept.error}")

    def _plan_sweep(self, state: CatalogState, before: tuple[Summary, ...]) -> SweepPlan:
        """Records below the base, and what dropped checkpoints have left.

        What was pinned here since the record was made stays, for the next sync to list again.
        Files that no catalog here has ever named may belong to a sync that runs at this moment:
        they go only when they are old.
        """
        directory = self._here.directory
        held = {pin.checkpoint for pin in self._here.pins()}
        dropped = [s for s in before if state.find(s.checkpoint) is None]
        gone = {s.checkpoint: s.epoch for s in dropped if s.checkpoint not in held}
        if not gone:
            return plan_sweep(directory.list(paths.CATALOG), state, ())
        stay = (*state.live, *(s for s in dropped if s.checkpoint in held))
        needed = reachable((self._here.manifest(s) for s in stay), directory.pipeline)
        plan = plan_sweep(directory.list(), state, needed)
        epochs, now_us = set(gone.values()), self._clock.wall_us()

        def goes(entry: Entry) -> bool:
            meaning = paths.classify(entry.path)
            if meaning is None or meaning.kind == "record":
                return meaning is not None
            old = entry.modified_us is not None and now_us - entry.modified_us > _OLD_US
            return old or meaning.checkpoint in gone or meaning.epoch in epochs

        return SweepPlan(delete=tuple(entry for entry in plan.delete if goes(entry)))

    def _copy_pins(self, live: set[CheckpointId]) -> None:
        wanted = {pin.label: pin for pin in self._there.pins() if pin.checkpoint in live}
        there = {pin.label: pin for pin in self._here.pins()}
        new = [pin for label, pin in wanted.items() if there.get(label) != pin]
        self._report.pins = len(wanted)
        for pin in new:
            self._target.put(self._here.directory.at(paths.pin(pin.label)), pin_bytes(pin))
        for checkpoint in self._here.retired({pin.checkpoint for pin in new}):
            # Another sync came between: a pin that holds nothing is removed.
            for pin in new:
                if pin.checkpoint == checkpoint:
                    self._target.delete(self._here.directory.at(paths.pin(pin.label)))
        only = sorted(there.keys() - wanted.keys())
        if self._prune:
            for label in only:
                self._target.delete(self._here.directory.at(paths.pin(label)))
        else:
            self._report.pins_only_there = tuple(only)

    def _hint(self, state: CatalogState) -> None:
        newest = state.candidates[0] if state.candidates else None
        if newest is None:
            return
        hint = hint_bytes(state, newest.checkpoint, newest.epoch)
        if _bytes_of(self._here, paths.LATEST, SMALL_BYTES_MAX) != hint:
            self._target.put(self._here.directory.at(paths.LATEST), hint, durable=False)


def _bytes_of(reader: StoreReader, path: str, bytes_max: int) -> bytes | None:
    try:
        return reader.directory.get(path, bytes_max=bytes_max)
    except (NotFoundError, CorruptionError):
        return None
    except HoldfastError:
        raise
