"""The catalog: a hash-chained sequence of records, and the state that they add up to.

Invariants:
- Record N exists at most once (put-if-absent) and carries the SHA-256 of the file of record N-1.
- The readable catalog is base..head without a gap. Records below the base mean nothing.
- A record is deleted only while a base record above it exists. So a number that was freed, or
  leapt over, always has a record above it.
- A writer holds the catalog while its newest record is the highest one that is there and the
  record before is, byte for byte, the one that it followed (`CatalogWriter._check_held`). Nobody
  is told "done", "open" or "alive" by any other rule.
- Epochs never decrease along the catalog, and are never used twice.
- The hint `_latest` is for people and monitors, and a witness of lost records: recovery never
  resumes from it. It is written after what it tells of is durable, and is never worth failing for.

Spec: spec/format-v2.md, section 4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from holdfast.checkpoint.commit.conditional_put import publish
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.clock import Clock
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    CorruptionError,
    FencedError,
    HoldfastError,
    IncompatibleError,
    NotFoundError,
    StorageError,
)
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST
from holdfast.format.documents import (
    RECORD_BYTES_MAX,
    SMALL_BYTES_MAX,
    BaseBody,
    Body,
    CommitBody,
    DropBody,
    Latest,
    OpenBody,
    Record,
    Summary,
    latest_bytes,
    parse_latest,
    parse_record,
    record_bytes,
)
from holdfast.format.findings import Finding
from holdfast.ids import CheckpointId, Epoch, Sequence, WriterId
from holdfast.storage.base import Storage
from holdfast.storage.local.reserve import release_reserve

NO_PREVIOUS = "0" * 64
REBUILD = (
    "run `holdfast rebuild-catalog` to make a new catalog from the manifests; nothing was changed"
)
_LISTINGS = 5
_LISTINGS_OF_A_GAP = 2
_FIRST, _NONE = Sequence(0), Sequence(-1)


@dataclass(frozen=True)
class CatalogState:
    """What the records add up to."""

    base: Sequence = _FIRST
    head: Sequence = _NONE
    head_sha256: str = NO_PREVIOUS
    live: tuple[Summary, ...] = ()
    epoch_max: int = -1
    writer: WriterId | None = None
    damage: tuple[Finding, ...] = field(default=())
    damaged_after: Sequence | None = None
    synced: bool = False

    def find(self, checkpoint: CheckpointId) -> Summary | None:
        """A live checkpoint."""
        return next((entry for entry in self.live if entry.checkpoint == checkpoint), None)

    @property
    def candidates(self) -> list[Summary]:
        """Live checkpoints that recovery may choose, newest first."""
        return [entry for entry in reversed(self.live) if not entry.abandoned]


def fold(state: CatalogState, record: Record, file_sha256: str) -> CatalogState:
    """The state after one more record."""
    body = record.body
    after = replace(state, head=record.sequence, head_sha256=file_sha256, writer=record.writer)
    if isinstance(body, OpenBody):
        now = {**dict.fromkeys(body.abandoned, True), **dict.fromkeys(body.revived, False)}
        live = tuple(
            msgspec.structs.replace(entry, abandoned=now[entry.checkpoint])
            if entry.checkpoint in now
            else entry
            for entry in state.live
        )
        return replace(after, live=live)
    if isinstance(body, CommitBody):
        epoch_max = max(state.epoch_max, body.summary.epoch)
        return replace(after, live=(*state.live, body.summary), epoch_max=epoch_max)
    if isinstance(body, DropBody):
        dropped = set(body.checkpoints)
        return replace(
            after, live=tuple(entry for entry in state.live if entry.checkpoint not in dropped)
        )
    return replace(
        after,
        base=record.sequence,
        live=tuple(body.live),
        epoch_max=body.epoch_max,
        synced=body.synced,
    )


def lineage(live: Iterable[Summary], checkpoint: CheckpointId) -> dict[CheckpointId, Summary]:
    """A checkpoint and its ancestors, as far back as they are live."""
    known = {entry.checkpoint: entry for entry in live}
    chain: dict[CheckpointId, Summary] = {}
    ancestor: CheckpointId | None = checkpoint
    while ancestor is not None and ancestor in known and ancestor not in chain:
        chain[ancestor] = known[ancestor]
        ancestor = known[ancestor].parent
    return chain


def off_lineage(live: Iterable[Summary], checkpoint: CheckpointId) -> list[Summary]:
    """Checkpoints of other branches: younger than the oldest known ancestor, yet no ancestor."""
    live = tuple(live)
    chain = lineage(live, checkpoint)
    oldest = min((entry.sequence for entry in chain.values()), default=_NONE)
    return [e for e in live if e.sequence > oldest and e.checkpoint not in chain]


def load_catalog(directory: PipelineDirectory) -> CatalogState | None:
    """Read base..head; None when there is no record at all.

    A writer may compact while this reads: a record that vanishes, or a gap that a second listing
    does not show, means reading the list again.
    """
    for listing in range(_LISTINGS):
        sequences = record_numbers(directory)
        if not sequences:
            return None
        try:
            return _read_chain(directory, sequences)
        except NotFoundError:
            continue
        except CorruptionError as error:
            if error.kind != "catalog_gap" or listing >= _LISTINGS_OF_A_GAP:
                raise
    raise StorageError(
        "the catalog changes faster than it can be read",
        kind="busy_catalog",
        retryable=True,
        remedy="try again",
        took_effect=False,
    )


def record_numbers(directory: PipelineDirectory) -> list[Sequence]:
    """The numbers of all records that are there."""
    return sorted(
        meaning.sequence
        for entry in directory.list(paths.CATALOG)
        if (meaning := paths.classify(entry.path)) is not None and meaning.sequence is not None
    )


def _read_chain(directory: PipelineDirectory, sequences: list[Sequence]) -> CatalogState:
    head = sequences[-1]
    base = _find_base(directory, sequences)
    numbers = [number for number in sequences if number >= base]
    if len(numbers) != head - base + 1:  # never count up to a number that a stranger has chosen
        present = set(numbers)
        missing = next(number for number in range(base, head + 1) if number not in present)
        raise CorruptionError(
            "the catalog has a gap",
            kind="catalog_gap",
            path=directory.at(paths.record(Sequence(missing))),
            missing=head - base + 1 - len(numbers),
            remedy=REBUILD,
        )
    contents = directory.get_many(
        [paths.record(number) for number in numbers], bytes_max=RECORD_BYTES_MAX
    )
    chain = _Chain(CatalogState(base=base))
    for number, content in zip(numbers, contents, strict=True):
        if isinstance(content, HoldfastError) and not isinstance(content, CorruptionError):
            raise content
        chain.add(number, directory.at(paths.record(number)), content)
    return chain.finish(directory)


def _find_base(directory: PipelineDirectory, sequences: list[Sequence]) -> Sequence:
    """The newest readable record says where the readable part begins."""
    reason: HoldfastError | None = None
    for number in reversed(sequences):
        path = paths.record(number)
        try:
            data = directory.get(path, bytes_max=RECORD_BYTES_MAX)
            return parse_record(data, directory.at(path), number).base
        except CorruptionError as error:
            reason = reason or error
    raise CorruptionError(
        "no record of the catalog can be read",
        kind="catalog_lost",
        path=directory.at(paths.CATALOG),
        records=len(sequences),
        reason=reason.kind if reason else None,
        remedy=REBUILD,
    )


class _Chain:
    """Adds records up and notices where the chain does not hold."""

    def __init__(self, state: CatalogState) -> None:
        self._state = state
        self._damage: list[Finding] = []
        self._damaged: list[Sequence] = []
        self._last_damaged = False

    def add(self, number: Sequence, path: str, content: bytes | HoldfastError) -> None:
        try:
            if isinstance(content, HoldfastError):
                raise content
            record = parse_record(content, path, number)
        except IncompatibleError:
            raise
        except CorruptionError as error:
            self._note(number, path, error.kind, str(error.what))
            digest = hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else ""
            self._state = replace(self._state, head=number, head_sha256=digest)
            self._last_damaged = True
            return
        first = number == self._state.base
        if not first and not self._last_damaged and record.previous != self._state.head_sha256:
            self._note(number, path, "chain_broken", "record does not follow the one before")
        self._last_damaged = False
        self._state = fold(self._state, record, hashlib.sha256(content).hexdigest())

    def _note(self, number: Sequence, path: str, kind: str, message: str) -> None:
        self._damage.append(Finding(severity="error", kind=kind, message=message, path=path))
        self._damaged.append(number)

    def finish(self, directory: PipelineDirectory) -> CatalogState:
        if self._state.base in self._damaged and self._state.base != 0:
            raise CorruptionError(
                "the base record of the catalog is damaged",
                kind="catalog_lost",
                path=directory.at(paths.record(self._state.base)),
                remedy=REBUILD,
            )
        return replace(
            self._state,
            damage=tuple(self._damage),
            damaged_after=self._damaged[-1] if self._damaged else None,
        )


class CatalogWriter:
    """Appends records for one writer, and knows when that writer is dead."""

    def __init__(
        self,
        directory: PipelineDirectory,
        storage: Storage,
        state: CatalogState,
        writer: WriterId,
        clock: Clock,
    ) -> None:
        """Continue after `state`."""
        self._directory = directory
        self._storage = storage
        self._clock = clock
        self.state = state
        self.writer = writer
        self._dead: HoldfastError | None = None
        self.put_done = False  # whether the record of the last append was put, whatever came then
        self._tag: str | None = None  # of the newest record, as the storage's listing shows it
        self._seen: tuple[Sequence, ...] = ()  # all records, at the last check

    def check_alive(self) -> None:
        """Refuse when this writer was fenced or does not know what it has done."""
        if self._dead is not None:
            raise self._dead

    def confirm_alive(self) -> None:
        """Ask the storage whether there is a successor; what was listed before is then all ours."""
        self.check_alive()
        if self.state.head < 0:
            return
        try:
            self._check_held(self.state.head, self.state.head)
        except FencedError as error:
            self._dead = error
            raise

    def append(self, body: Body, *, leap: bool = False) -> Record:
        """Write the next record. After an error of any kind the in-memory state is unchanged.

        `leap`: nothing is expected before it, since the catalog was lost.
        """
        self.check_alive()
        number = Sequence(self.state.head + 1)
        record = Record(
            format=FORMAT_VERSION,
            sha256=NO_DIGEST,
            sequence=number,
            base=number if isinstance(body, BaseBody) else self.state.base,
            previous=self.state.head_sha256,
            writer=self.writer,
            at_us=self._clock.wall_us(),
            body=body,
        )
        data = record_bytes(record)
        path = self._directory.at(paths.record(number))
        self.put_done = False
        try:
            self._put(path, data, spare=not isinstance(body, CommitBody))
            self.put_done = True
            self._confirm(number, follows=None if leap or number == 0 else self.state.head)
        except AlreadyExistsError as error:
            self._dead = self._fenced(number)
            raise self._dead from error
        except (CommitUnknownError, FencedError) as error:
            self._dead = error
            raise
        self.state = fold(self.state, record, hashlib.sha256(data).hexdigest())
        return record

    def _put(self, path: str, data: bytes, *, spare: bool) -> None:
        """Put-if-absent; on a full disk, what opens or releases may use the reserve."""
        try:
            publish(self._storage, path, data, self._clock)
        except StorageError as error:
            full = error.kind == "disk_full" and error.took_effect is False
            if not (spare and full and release_reserve(self._storage)):
                raise
            publish(self._storage, path, data, self._clock)

    def _confirm(self, number: Sequence, *, follows: Sequence | None) -> None:
        """What was written counts only if this writer held the catalog when it wrote."""
        try:
            self._check_held(number, follows)
        except FencedError:
            raise
        except HoldfastError as error:
            raise CommitUnknownError(
                "the record was written, but not confirmed as part of the chain",
                path=self._directory.at(paths.record(number)),
                remedy="open the store again: recovery reads what is there and resumes from it",
            ) from error

    def _check_held(self, newest: Sequence, known: Sequence | None) -> None:
        """The one definition of being the writer; `FencedError` if it does not hold.

        `newest`, our own record, is the highest of all. A number that another writer has used, and
        a compaction freed, and a number that a rebuild leapt over, has a record above it for ever.
        `known` is still what we know it to be: a record that was lost and written again, or a
        catalog that was brought back from a copy, is somebody else's history.
        """
        tags = {
            meaning.sequence: entry.tag
            for entry in self._directory.list(paths.CATALOG)
            if (meaning := paths.classify(entry.path)) is not None and meaning.sequence is not None
        }
        held = bool(tags) and max(tags) == newest and (known is None or known in tags)
        if held and known is not None:
            held = self._is_ours(known, tags[known])
        if not held:
            raise self._fenced(newest)
        self._tag = tags[newest]
        self._seen = tuple(sorted(tags))

    def _is_ours(self, number: Sequence, tag: str | None) -> bool:
        """Whether the record that we know as our newest has the bytes that we know."""
        if tag is not None and tag == self._tag:
            return True
        if not self.state.head_sha256:
            return True  # it could not be read when we opened: there is nothing to compare
        try:
            data = self._directory.get(paths.record(number), bytes_max=RECORD_BYTES_MAX)
        except (NotFoundError, CorruptionError):
            return False
        return hashlib.sha256(data).hexdigest() == self.state.head_sha256

    def _fenced(self, number: Sequence) -> FencedError:
        return FencedError(
            "another writer has taken over this pipeline",
            pipeline=self._directory.pipeline,
            sequence=number,
            writer=self.writer,
            remedy="stop this process; the other writer continues from the last checkpoint",
        )

    def append_base(self, live: tuple[Summary, ...]) -> None:
        """Write a base record: all live checkpoints at once."""
        self.append(BaseBody(live=list(live), epoch_max=self.state.epoch_max))

    def append_lost(self, lost: tuple[Summary, ...], *, epoch_max: int) -> None:
        """Write a base record with checkpoints whose records were lost; heals that damage."""
        known = {entry.checkpoint for entry in self.state.live}
        more = [entry for entry in lost if entry.checkpoint not in known]
        live = sorted([*self.state.live, *more], key=lambda entry: entry.sequence)
        damage = tuple(f for f in self.state.damage if f.kind != "catalog_shrank")
        if damage:
            return  # a base would bury the other damage
        self.append(BaseBody(live=live, epoch_max=max(self.state.epoch_max, epoch_max)))
        self.state = replace(self.state, damage=(), damaged_after=None)

    def replace_all(self, live: tuple[Summary, ...], *, planned_from: Sequence) -> bool:
        """Write a rebuilt base record, which follows nothing; False if it must be planned again.

        A writer may have lived: what it has put after `planned_from` is not part of the base.
        """
        self.append(
            BaseBody(live=list(live), epoch_max=self.state.epoch_max, rebuilt=True), leap=True
        )
        return not any(planned_from < number < self.state.head for number in self._seen)

    def compaction_due(self, base_every_min: int) -> bool:
        """Whether reading the records after the base costs more than writing them as one."""
        tail = self.state.head - self.state.base
        return tail >= max(base_every_min, len(self.state.live) // 32)

    def compact(self) -> int:
        """Write a base record, then delete the records that it replaces. Returns how many."""
        self.check_alive()
        if self.state.damage:
            raise CorruptionError(
                "the catalog is damaged: folding it would bury what it has forgotten",
                kind="catalog_damaged",
                path=self.state.damage[0].path,
                remedy=REBUILD,
            )
        failpoint("compact.before_base")
        self.append_base(self.state.live)
        failpoint("compact.after_base")
        old = [number for number in self._seen if number < self.state.base]
        for batch in (old[:1], old[1:]):
            self._storage.delete_many(
                [self._directory.at(paths.record(number)) for number in batch]
            )
            if batch == old[:1]:
                failpoint("compact.after_first_delete")
        return len(old)


def hint_bytes(state: CatalogState, checkpoint: CheckpointId, epoch: Epoch) -> bytes:
    """The hint that tells of a catalog's head and of its newest checkpoint."""
    return latest_bytes(
        Latest(
            format=FORMAT_VERSION,
            sha256=NO_DIGEST,
            sequence=state.head,
            record_sha256=state.head_sha256,
            checkpoint=checkpoint,
            epoch=epoch,
        )
    )


def write_hint(
    directory: PipelineDirectory,
    storage: Storage,
    state: CatalogState,
    checkpoint: CheckpointId,
    epoch: Epoch,
) -> None:
    """Leave the hint; a failure is ignored."""
    content = hint_bytes(state, checkpoint, epoch)
    with suppress(HoldfastError):
        storage.put(directory.at(paths.LATEST), content, durable=False)


def read_hint(directory: PipelineDirectory) -> Latest | None:
    """The hint, or None where it is missing or damaged."""
    try:
        data = directory.get(paths.LATEST, bytes_max=SMALL_BYTES_MAX)
        return parse_latest(data, directory.at(paths.LATEST))
    except (NotFoundError, CorruptionError):
        return None
