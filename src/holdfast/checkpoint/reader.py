"""Reading a pipeline's checkpoints. Nothing here can write.

Invariants:
- Listing never skips silently: what cannot be read is shown as damaged.
- A checkpoint is what the catalog says and the manifest confirms by its digest, never `_latest`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

from holdfast.checkpoint.commit.catalog import REBUILD, CatalogState, load_catalog
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reference import Ref, find_checkpoint
from holdfast.checkpoint.segments import Segments, load_segments
from holdfast.clock import SystemClock
from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    invariant,
)
from holdfast.format import paths
from holdfast.format.canonical import sha256_hex
from holdfast.format.documents import (
    SMALL_BYTES_MAX,
    Outcome,
    Pin,
    StoreHeader,
    Summary,
    parse_header,
    parse_outcome,
    parse_pin,
)
from holdfast.format.findings import Finding, errors_of
from holdfast.format.manifest import (
    MANIFEST_BYTES_MAX,
    InlineState,
    Manifest,
    PackedState,
    parse_manifest,
)
from holdfast.format.validate import findings_about
from holdfast.ids import CheckpointId, Epoch
from holdfast.storage.base import StorageReader
from holdfast.storage.open import storage_at

_GONE = ("not_found", "run_missing")


@dataclass(frozen=True)
class Outcomes:
    """All outcomes that could be read, and what could not."""

    by_token: dict[tuple[CheckpointId, str], list[Outcome]]
    damage: tuple[Finding, ...] = ()
    epoch_max: int = -1

    def status(self, checkpoint: CheckpointId, sink: str) -> str:
        """`pending`, or the last thing that became of the token; committed is final."""
        known = self.by_token.get((checkpoint, sink), [])
        if any(outcome.status == "committed" for outcome in known):
            return "committed"
        return known[-1].status if known else "pending"

    def fully_committed(self, summary: Summary) -> bool:
        """Whether no sink of a checkpoint has anything left to publish."""
        return all(
            self.status(summary.checkpoint, sink.name) in ("committed", "aborted")
            for sink in summary.sinks
        )


class StoreReader:
    """One pipeline's checkpoints, for reading."""

    def __init__(self, directory: PipelineDirectory) -> None:
        """Use `read_store`."""
        self.directory = directory

    # Parts

    def header(self) -> StoreHeader:
        """What this directory is."""
        path = self.directory.at(paths.HEADER)
        try:
            data = self.directory.get(paths.HEADER, bytes_max=SMALL_BYTES_MAX)
        except NotFoundError:
            why = self._no_header()
            if why is not None:
                raise why from None
            data = self.directory.get(paths.HEADER, bytes_max=SMALL_BYTES_MAX)
        header = parse_header(data, path)
        if header.pipeline != self.directory.pipeline:
            raise CorruptionError(
                "the directory was renamed or copied from another pipeline",
                kind="misplaced",
                path=path,
                expected=self.directory.pipeline,
                actual=header.pipeline,
                remedy="give it its old name back",
            )
        return header

    def _no_header(self) -> HoldfastError | None:
        """Say what is here instead of a store; None if the header has come just now."""
        kinds = set()
        for entry in self.directory.list():
            meaning = paths.classify(entry.path)
            kinds.add(meaning.kind if meaning else "foreign")
        if "header" in kinds:
            return None
        if kinds <= {"lock", "temporary"}:  # at most the traces of a first opening that died
            return NotFoundError(
                "no pipeline of that name in this store",
                kind="no_pipeline",
                root=self.directory.storage.url,
                pipeline=self.directory.pipeline,
                remedy="check the root and the name",
            )
        if kinds <= {"foreign", "lock", "temporary"}:
            return InvalidInputError(
                "the directory holds other things, but no Holdfast pipeline",
                kind="not_a_store",
                path=f"{self.directory.storage.url}/{self.directory.pipeline}",
                remedy="choose another name or root; nothing was changed",
            )
        return CorruptionError(
            "the store header is missing",
            kind="header_lost",
            path=self.directory.at(paths.HEADER),
            remedy=REBUILD,
        )

    def catalog(self) -> CatalogState:
        """What the records add up to; a lost catalog is an error, never an empty store."""
        state = load_catalog(self.directory)
        if state is not None:
            return state
        if self.has_artifacts():
            # The first record is older than the first file. A writer may have brought both since
            # the catalog was read: only a second look can tell that from a loss.
            state = load_catalog(self.directory)
            if state is not None:
                return state
            raise CorruptionError(
                "the catalog is lost, but checkpoints are here",
                kind="catalog_lost",
                path=self.directory.at(paths.CATALOG),
                remedy=REBUILD,
            )
        return CatalogState()

    def has_artifacts(self) -> bool:
        """Whether anything of a checkpoint was ever stored here."""
        return any(True for _ in self.directory.list(paths.CHECKPOINTS)) or any(
            True for _ in self.directory.list(paths.OUTCOMES)
        )

    def head(self) -> int | None:
        """The newest record of the catalog, if it can be read; moves with every commit."""
        state = load_catalog(self.directory)
        return state.head if state else None

    def retired(self, checkpoints: Collection[CheckpointId]) -> set[CheckpointId]:
        """Which of these are live no more: their files may go at any moment, and are not lost."""
        state = load_catalog(self.directory)
        live = {entry.checkpoint for entry in state.live} if state else set(checkpoints)
        return set(checkpoints) - live

    @contextmanager
    def reading(self, *checkpoints: CheckpointId) -> Iterator[None]:
        """While these are read: what goes missing because one was given up is not damage."""
        try:
            yield
        except (CorruptionError, NotFoundError) as error:
            if isinstance(error, NotFoundError) and error.kind not in _GONE:
                raise
            try:
                retired = self.retired(checkpoints)
            except HoldfastError:
                raise error from None  # what was found out first is the better reason
            if not retired:
                raise
            raise retired_error(min(retired)) from error

    def list(self) -> Sequence[Summary]:
        """Live checkpoints, newest first; from one listing and the records of the catalog.

        A damaged record may have held a checkpoint, so that is an error and not a shorter list;
        `catalog()` shows what is left, with the damage next to it.
        """
        self.header()
        state = self.catalog()
        if state.damage:
            raise CorruptionError(
                "the catalog is damaged, so the list would not be complete",
                kind="catalog_damaged",
                path=state.damage[0].path,
                damaged=len(state.damage),
                readable=len(state.live),
                remedy="run `holdfast verify` to see what is damaged",
            )
        return [*reversed(state.live)]

    def manifest(self, ref: Ref | Summary, *, segments: Segments | None = None) -> Manifest:
        """The manifest of a checkpoint, checked against the catalog's digest.

        segments: known ones, which are not read again; what is read is added.
        """
        summary = ref if isinstance(ref, Summary) else self.resolve(ref)
        path = paths.manifest(summary.checkpoint)
        try:
            data = self.directory.get(path, bytes_max=MANIFEST_BYTES_MAX)
        except NotFoundError:
            if summary.checkpoint in self.retired([summary.checkpoint]):
                raise retired_error(summary.checkpoint) from None
            raise CorruptionError(
                "manifest is missing",
                kind="missing",
                path=self.directory.at(path),
                remedy="run `holdfast recover --plan` to see the newest intact checkpoint",
            ) from None
        actual = sha256_hex(data)
        if actual != summary.manifest_sha256:
            raise CorruptionError(
                "manifest digest differs",
                kind="digest_differs",
                path=self.directory.at(path),
                expected=summary.manifest_sha256,
                actual=actual,
                remedy="run `holdfast recover --plan` to see the newest intact checkpoint",
            )
        manifest = parse_manifest(data, self.directory.at(path), summary.checkpoint)
        return self._checked(self._whole(manifest, segments))

    def _whole(self, manifest: Manifest, segments: Segments | None) -> Manifest:
        """With what its segments list; a checkpoint that was retired meanwhile has none."""
        try:
            return load_segments(self.directory, manifest, known=segments)
        except CorruptionError as error:
            if error.kind == "missing" and self.retired([manifest.checkpoint]):
                raise retired_error(manifest.checkpoint) from None
            raise

    def _checked(self, manifest: Manifest) -> Manifest:
        errors = errors_of(findings_about(manifest))
        if errors:
            raise CorruptionError(
                f"manifest is not valid: {errors[0].message}",
                kind="invalid_manifest",
                path=self.directory.at(paths.manifest(manifest.checkpoint)),
                findings=len(errors),
            )
        return manifest

    def small_state(self, manifest: Manifest, operator: str) -> bytes:
        """Small state of an operator, checked against its digest."""
        entry = manifest.operator(operator)
        if entry is None or entry.small is None:
            raise NotFoundError("operator has no small state", operator=operator)
        small = entry.small
        if isinstance(small, InlineState):
            data, path = small.data, paths.manifest(manifest.checkpoint)
        else:
            data, path = self._packed(manifest, small), small.path
        if sha256_hex(data) != small.sha256:
            raise CorruptionError(
                "operator state differs from its digest",
                kind="digest_differs",
                path=self.directory.at(path),
                expected=small.sha256,
                actual=sha256_hex(data),
            )
        return data

    def _packed(self, manifest: Manifest, small: PackedState) -> bytes:
        pack = next(file for file in manifest.files if file.path == small.path)
        path = self.directory.file(pack)
        try:
            return self.directory.storage.get_range(path, small.offset, small.length)
        except (NotFoundError, InvalidInputError) as error:
            if manifest.checkpoint in self.retired([manifest.checkpoint]):
                raise retired_error(manifest.checkpoint) from None
            raise CorruptionError(
                "operator state is missing or cut off",
                kind="truncated",
                path=path,
                expected=small.length,
                reason=error.kind,
            ) from error

    def pins(self) -> Sequence[Pin]:
        """Savepoints, by label. A pin that cannot be read is an error: it protects something."""
        pins = []
        for entry in self.directory.list(paths.PINS):
            meaning = paths.classify(entry.path)
            if meaning is not None and meaning.kind == "pin" and meaning.name:
                try:
                    data = self.directory.get(entry.path, bytes_max=SMALL_BYTES_MAX)
                except NotFoundError:
                    continue  # unpinned since it was listed
                pins.append(parse_pin(data, self.directory.at(entry.path), meaning.name))
        return pins

    def outcomes(self, *, epochs: Collection[int] | None = None) -> Outcomes:
        """What became of every sink token, or of those of some epochs."""
        begins = None if epochs is None else {paths.outcomes_of(Epoch(e)) for e in epochs}
        named = [
            (entry.path, meaning)
            for entry in self.directory.list(paths.OUTCOMES)
            if (begins is None or entry.path[: paths.OUTCOMES_OF_LENGTH] in begins)
            and (meaning := paths.classify(entry.path)) is not None
            and meaning.kind == "outcome"
        ]
        contents = self.directory.get_many([path for path, _ in named], bytes_max=SMALL_BYTES_MAX)
        by_token: dict[tuple[CheckpointId, str], list[Outcome]] = {}
        damage = []
        for (path, meaning), content in zip(named, contents, strict=True):
            try:
                if isinstance(content, NotFoundError):
                    continue  # its checkpoint was released since it was listed
                if isinstance(content, HoldfastError):
                    raise content
                epoch, attempt = meaning.epoch, meaning.attempt
                invariant(epoch is not None and attempt is not None, "outcome without a number")
                outcome = parse_outcome(
                    content,
                    self.directory.at(path),
                    Epoch(epoch or 0),
                    meaning.name or "",
                    attempt or 0,
                )
            except CorruptionError as error:
                # Without an outcome the token is committed again: every sink is idempotent.
                damage.append(as_finding(error))
                continue
            by_token.setdefault((outcome.checkpoint, outcome.sink), []).append(outcome)
        return Outcomes(
            by_token=by_token,
            damage=tuple(damage),
            epoch_max=max((meaning.epoch or 0 for _, meaning in named), default=-1),
        )

    # Finding one

    def resolve(self, ref: Ref, *, catalog: CatalogState | None = None) -> Summary:
        """A checkpoint by its name, as the command line takes it: see `find_checkpoint`."""
        return find_checkpoint(self, ref, SystemClock().wall_us(), catalog=catalog)


def retired_error(checkpoint: CheckpointId) -> NotFoundError:
    """Says that a checkpoint was given up while somebody read it."""
    return NotFoundError(
        "the checkpoint was retired while it was read",
        kind="retired",
        checkpoint=checkpoint,
        remedy="read a newer one, or `holdfast pin` the one that must stay",
    )


def read_store(
    root: str | PathLike[str] | StorageReader,
    pipeline: str,
    *,
    options: dict[str, Any] | None = None,
) -> StoreReader:
    """Open a pipeline's checkpoints for reading. Never writes, never needs a running cluster."""
    storage = storage_at(root, create=False, options=options)
    reader = StoreReader(PipelineDirectory(storage, paths.pipeline_dir(pipeline)))
    reader.header()
    return reader


def list_pipelines(
    root: str | PathLike[str] | StorageReader, *, damaged: bool = False, **options: Any
) -> list[str]:
    """Names of the pipelines below a root; with `damaged` also those that lost their header."""
    storage = storage_at(root, create=False, options=options or None)
    return [name for name in _directories(storage) if _is_pipeline(storage, name, damaged=damaged)]


def _directories(storage: StorageReader) -> list[str]:
    """What lies right below a root; a backend that can tell without a full listing is asked."""
    ask = getattr(storage, "directories", None)
    if ask is None:
        names = {path[0] for e in storage.list("") if len(path := e.path.split("/", 1)) == 2}
    else:
        names = set(ask())
    return sorted(name for name in names if paths.valid_name(name))


def _is_pipeline(storage: StorageReader, name: str, *, damaged: bool) -> bool:
    if storage.exists(f"{name}/{paths.HEADER}"):
        return True
    return damaged and any(
        True for part in (paths.CATALOG, paths.CHECKPOINTS) for _ in storage.list(f"{name}/{part}")
    )


def as_finding(error: HoldfastError) -> Finding:
    """What an error says, as a finding."""
    return Finding(
        severity="error",
        kind=error.kind,
        message=error.what,
        path=str(error.facts.get("path", "")),
        expected=str(error.facts.get("expected", "")),
        actual=str(error.facts.get("actual", "")),
    )
