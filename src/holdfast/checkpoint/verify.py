"""Verification: is every byte that a pipeline depends on still what was written?

Invariants:
- Shallow compares presence and size of every file of every live checkpoint, inherited ones
  included, and the digests of all documents. Deep also hashes every byte of every file.
- Every file is hashed once, however many checkpoints share it.
- A finding names its file. An unreadable document is a finding, never a crash and never skipped.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reader import StoreReader, as_finding
from holdfast.checkpoint.recovery.witness import against, call_witnesses
from holdfast.checkpoint.segments import Segments
from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.format import paths
from holdfast.format.documents import (
    RECORD_BYTES_MAX,
    SMALL_BYTES_MAX,
    BaseBody,
    Summary,
    parse_latest,
    parse_record,
)
from holdfast.format.findings import Finding, errors_of
from holdfast.format.manifest import FileEntry, Manifest
from holdfast.format.validate import findings_about
from holdfast.ids import CheckpointId, Sequence
from holdfast.storage.base import Entry, StorageReader

_CHUNK_BYTES = 8 * 1024 * 1024
_LIST_FROM_FILES = 64  # a listing costs a request for each thousand objects, a look one for each
_LOOKS = 20  # at a store that changes meanwhile
_THREADS_FROM_BYTES = 1024 * 1024
_BROKEN = "io_error"  # what a disk says about a place that it cannot read
RETIRED = "retired"
Progress = Callable[[int, int], None]
T = TypeVar("T")


@dataclass
class VerifyReport:
    """What was checked and what was found."""

    deep: bool
    tolerant: bool = False
    findings: list[Finding] = field(default_factory=list)
    by_checkpoint: dict[CheckpointId, list[Finding]] = field(default_factory=dict)
    checkpoints: int = 0
    files: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing forbids trust."""
        everything = [*self.findings, *(f for some in self.by_checkpoint.values() for f in some)]
        return not any(finding.severity == "error" for finding in everything)

    def all_findings(self) -> list[Finding]:
        """Store-wide findings, then those of the checkpoints; each once."""
        findings: dict[Finding, None] = dict.fromkeys(self.findings)
        for some in self.by_checkpoint.values():
            findings.update(dict.fromkeys(some))
        return [*findings]


def verify_store(
    reader: StoreReader, *, deep: bool = False, progress: Progress | None = None, threads: int = 2
) -> VerifyReport:
    """Check everything that belongs to a pipeline."""
    report = VerifyReport(deep=deep, tolerant=True)
    state = _check_documents(reader, report)
    if state is None:
        return report
    listing = _guard(report, lambda: [*reader.directory.list()]) or ()
    sizes = {entry.path: entry.size for entry in listing}
    verify_checkpoints(reader, state.live, report, progress=progress, threads=threads, sizes=sizes)
    _check_others(reader, state, listing, report)
    return report


def _check_documents(reader: StoreReader, report: VerifyReport) -> CatalogState | None:
    """Catalog, hint, pins and outcomes, against each other.

    A pipeline that runs writes all four: what is younger than the catalog that was read looks as
    if records were lost. So a contradiction counts only if the catalog has not moved meanwhile.
    """
    before = [*report.findings]
    for _ in range(_LOOKS):
        report.findings[:] = before
        state = _look_at_documents(reader, report)
        if report.ok or state is None or reader.head() == state.head:
            break
    return state


def _look_at_documents(reader: StoreReader, report: VerifyReport) -> CatalogState | None:
    _guard(report, reader.header)
    witnesses = _guard(report, lambda: call_witnesses(reader))
    state = _guard(report, reader.catalog)
    if state is None:
        return None
    report.findings.extend(state.damage)
    _check_latest(reader, state, report)
    _check_pins(reader, state, report)
    outcomes = _guard(report, reader.outcomes)
    if outcomes is not None:
        report.findings.extend(outcomes.damage)
        if witnesses is not None:
            witnessed = _guard(report, lambda: against(witnesses, state, outcomes, reader))
            report.findings.extend(witnessed.damage[len(state.damage) :] if witnessed else ())
    return state


def verify_checkpoints(
    reader: StoreReader,
    summaries: Iterable[Summary],
    report: VerifyReport,
    *,
    progress: Progress | None = None,
    threads: int = 2,
    sizes: Mapping[str, int] | None = None,
) -> dict[CheckpointId, Manifest]:
    """Check these checkpoints; findings go into the report under their ids.

    sizes: files of the pipeline that a listing has shown meanwhile.
    """
    manifests: dict[CheckpointId, Manifest] = {}
    entries: dict[str, FileEntry] = {}
    segments: Segments = {}
    for summary in summaries:
        report.checkpoints += 1
        findings = report.by_checkpoint.setdefault(summary.checkpoint, [])
        try:
            manifest = _twice(partial(reader.manifest, summary, segments=segments))
        except (CorruptionError, RefusedError, NotFoundError) as error:
            findings.append(as_finding(error))
            continue
        except HoldfastError as error:
            if not report.tolerant and error.kind != _BROKEN:
                raise
            findings.append(as_finding(error))
            continue
        findings.extend(_against_catalog(reader, manifest, summary))
        manifests[summary.checkpoint] = manifest
        for entry in manifest.files:
            known = entries.setdefault(reader.directory.file(entry), entry)
            if (known.size, known.sha256) != (entry.size, entry.sha256):
                findings.append(
                    _finding("entries_differ", "two manifests disagree about a file", entry.path)
                )
    broken = _check_files(reader, entries, report, progress, threads, sizes)
    for checkpoint, manifest in manifests.items():
        report.by_checkpoint[checkpoint].extend(
            broken[path]
            for entry in manifest.files
            if (path := reader.directory.file(entry)) in broken
        )
    _forgive_retired(reader, report)
    return manifests


def intact(findings: Iterable[Finding]) -> bool:
    """Whether a checkpoint with these findings can be resumed from."""
    findings = [*findings]
    return not errors_of(findings) and all(finding.kind != RETIRED for finding in findings)


def _forgive_retired(reader: StoreReader, report: VerifyReport) -> None:
    """A checkpoint that the pipeline gave up meanwhile may lose its files: that is no damage."""
    suspects = [c for c, findings in report.by_checkpoint.items() if errors_of(findings)]
    retired = reader.retired(suspects) if suspects else set()
    for checkpoint in retired:
        report.by_checkpoint[checkpoint] = [
            _finding(
                RETIRED,
                "the checkpoint was retired while it was checked",
                reader.directory.at(paths.manifest(checkpoint)),
                severity="info",
            )
        ]


def _against_catalog(reader: StoreReader, manifest: Manifest, summary: Summary) -> list[Finding]:
    """What catalog and manifest both say must be the same; odd things are mentioned."""
    path = reader.directory.at(paths.manifest(manifest.checkpoint))
    pairs = (
        (manifest.epoch, summary.epoch, "epoch"),
        (manifest.fingerprint, summary.fingerprint, "fingerprint"),
        (manifest.parent, summary.parent, "parent"),
        (manifest.pipeline, reader.directory.pipeline, "pipeline"),
    )
    findings = [
        _finding("catalog_differs", f"catalog and manifest disagree about the {what}", path, b, a)
        for a, b, what in pairs
        if a != b
    ]
    return [*findings, *(f for f in findings_about(manifest) if f.severity != "info")]


def _check_files(
    reader: StoreReader,
    entries: dict[str, FileEntry],
    report: VerifyReport,
    progress: Progress | None,
    threads: int,
    sizes: Mapping[str, int] | None,
) -> dict[str, Finding]:
    total = sum(entry.size for entry in entries.values())
    workers = max(threads, min(reader.directory.storage.parallel, 16))
    broken: dict[str, Finding] = {}
    listed = {} if report.deep else _listed(reader.directory, entries.values(), sizes)

    def check(item: tuple[str, FileEntry]) -> tuple[str, FileEntry, Finding | None]:
        if listed.get(item[0]) == item[1].size:
            return (*item, None)
        finding = check_file(
            reader.directory.storage, *item, deep=report.deep, tolerant=report.tolerant
        )
        return (*item, finding)

    def note(checked: Iterable[tuple[str, FileEntry, Finding | None]]) -> None:
        for path, entry, finding in checked:
            report.files += 1
            report.bytes += entry.size
            if finding is not None:
                broken[path] = finding
            if progress is not None:
                progress(report.bytes, total)

    if reader.directory.storage.parallel == 1 and (not report.deep or total < _THREADS_FROM_BYTES):
        note(map(check, entries.items()))  # starting threads would cost more than it saves
    else:
        with ThreadPoolExecutor(workers) as pool:
            note(pool.map(check, entries.items()))
    return broken


def _listed(
    directory: PipelineDirectory, files: Collection[FileEntry], own: Mapping[str, int] | None
) -> dict[str, int]:
    """Sizes of many files from one listing; what it does not show is asked for one by one."""
    sizes: dict[str, int] = {}
    if len(files) < _LIST_FROM_FILES:
        return sizes
    for pipeline in {entry.pipeline or directory.pipeline for entry in files}:
        place = PipelineDirectory(directory.storage, pipeline)
        if own is not None and pipeline == directory.pipeline:
            sizes.update((place.at(path), size) for path, size in own.items())
            continue
        try:
            for entry in place.list(paths.CHECKPOINTS):
                sizes[place.at(entry.path)] = entry.size
        except HoldfastError:
            continue
    return sizes


def check_file(
    storage: StorageReader, path: str, entry: FileEntry, *, deep: bool, tolerant: bool = False
) -> Finding | None:
    """One file of an inventory: there, of the right size, and with `deep` of the right content.

    A disk that reports an error twice has lost the file. A store that does not answer raises; with
    `tolerant`, that is a finding too.
    """
    try:
        return _twice(lambda: _compare(storage, path, entry, deep=deep))
    except NotFoundError:
        return _finding("missing", "file is missing", path)
    except (CorruptionError, InvalidInputError, RefusedError) as error:
        return _finding(error.kind, f"file cannot be read: {error.what}", path)
    except StorageError as error:
        # A disk that cannot read one file has lost it. A store that does not answer has lost
        # nothing: a decision by this check must not take silence for damage.
        if error.kind != _BROKEN and not tolerant:
            raise
        return _finding(error.kind, f"file cannot be read: {error.what}", path)


def _compare(storage: StorageReader, path: str, entry: FileEntry, *, deep: bool) -> Finding | None:
    size = storage.stat(path).size
    if size != entry.size:
        return _finding("size_differs", "file has another size", path, entry.size, size)
    if deep:
        actual = _hash(storage, path, entry.size)
        if actual != entry.sha256:
            return _finding("digest_differs", "file has other content", path, entry.sha256, actual)
    return None


def _twice(read: Callable[[], T]) -> T:
    """A disk may fail once and be well the next time."""
    try:
        return read()
    except StorageError as error:
        if error.kind != _BROKEN:
            raise
        return read()


def _hash(storage: StorageReader, path: str, size: int) -> str:
    local = storage.local_path(path)
    if local is not None:
        try:
            with local.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            raise NotFoundError("object does not exist", path=path) from None
        except OSError as error:
            kind = _BROKEN if error.errno == errno.EIO else "os_error"
            raise StorageError(
                error.strerror or "the file cannot be read",
                kind=kind,
                path=path,
                remedy="look at the system log and at the permissions",
                took_effect=False,
            ) from error
    digest = hashlib.sha256()
    for start in range(0, size, _CHUNK_BYTES):
        digest.update(storage.get_range(path, start, min(_CHUNK_BYTES, size - start)))
    return digest.hexdigest()


def _check_latest(reader: StoreReader, state: CatalogState, report: VerifyReport) -> None:
    """The hint must be whole and must point at a record that is or was there."""
    path = reader.directory.at(paths.LATEST)
    try:
        data = reader.directory.get(paths.LATEST, bytes_max=SMALL_BYTES_MAX)
    except NotFoundError:
        if state.live:
            report.findings.append(
                _finding("no_hint", "the hint is missing", path, severity="info")
            )
        return
    except HoldfastError as error:
        report.findings.append(as_finding(error))
        return
    latest = _guard(report, lambda: parse_latest(data, path))
    if latest is None:
        return
    entry = state.find(latest.checkpoint)
    if entry is not None and entry.epoch != latest.epoch:
        report.findings.append(
            _finding("hint_differs", "the hint disagrees with the catalog", path)
        )


def _check_pins(reader: StoreReader, state: CatalogState, report: VerifyReport) -> None:
    for pin in _guard(report, reader.pins) or ():
        path = reader.directory.at(paths.pin(pin.label))
        entry = state.find(pin.checkpoint)
        if entry is None:
            report.findings.append(
                _finding(
                    "pin_dangles", f"savepoint {pin.label} holds nothing", path, pin.checkpoint
                )
            )
        elif (entry.epoch, entry.manifest_sha256) != (pin.epoch, pin.manifest_sha256):
            report.findings.append(
                _finding("pin_differs", f"savepoint {pin.label} disagrees with the catalog", path)
            )


def _check_others(
    reader: StoreReader, state: CatalogState, listing: Iterable[Entry], report: VerifyReport
) -> None:
    """Files that no rule explains are mentioned; the start-up clean-up knows what to do."""
    live = {summary.checkpoint for summary in state.live}
    below: list[Sequence] = []
    for entry in listing:
        meaning = paths.classify(entry.path)
        if meaning is not None and meaning.kind == "record" and meaning.sequence is not None:
            below += [meaning.sequence] if meaning.sequence < state.base else []
        if meaning is None:
            report.findings.append(
                _finding(
                    "foreign",
                    "not a file of Holdfast",
                    reader.directory.at(entry.path),
                    severity="info",
                )
            )
        elif meaning.kind == "lock" and entry.size:
            report.findings.append(
                _finding(
                    "lock_not_empty", "the lock file has content", reader.directory.at(entry.path)
                )
            )
        elif meaning.kind == "manifest" and meaning.checkpoint not in live:
            report.findings.append(
                _finding(
                    "leftover",
                    "manifest that was never committed or is being removed",
                    reader.directory.at(entry.path),
                    severity="info",
                )
            )
    _check_below(reader, state, below, report)


def _check_below(
    reader: StoreReader, state: CatalogState, below: list[Sequence], report: VerifyReport
) -> None:
    """Records below the base mean nothing; those that were never part of the chain are named.

    A compaction that was cut short leaves records that lead to the base. Whatever does not was
    put into a freed number by a writer that had been overtaken, and was told so.
    """
    if not below:
        return
    numbers = [*sorted(below), state.base]
    contents = reader.directory.get_many(
        [paths.record(n) for n in numbers], bytes_max=RECORD_BYTES_MAX
    )
    known = dict(zip(numbers, contents, strict=True))
    chained, free = _leads_to(known, reader, state.base)
    for number in sorted(below):
        if isinstance(known[number], NotFoundError):
            continue  # a compaction has removed it meanwhile
        path = reader.directory.at(paths.record(number))
        if free or number in chained:
            what = "record below the base, to be removed by the next clean-up"
            report.findings.append(_finding("old_record", what, path, severity="info"))
        else:
            what = "record of a writer that had been overtaken: it counts for nothing"
            report.findings.append(_finding("dead_record", what, path, severity="warning"))


def _leads_to(
    known: dict[Sequence, bytes | HoldfastError], reader: StoreReader, base: Sequence
) -> tuple[set[Sequence], bool]:
    """Numbers below the base from which the chain leads to it; and whether it follows nothing."""
    chained: set[Sequence] = set()
    number, previous, free = base, "", False
    while isinstance(data := known.get(number), bytes):
        if number != base and hashlib.sha256(data).hexdigest() != previous:
            break
        try:
            record = parse_record(data, reader.directory.at(paths.record(number)), number)
        except CorruptionError:
            break
        if number == base:
            body = record.body
            free = isinstance(body, BaseBody) and (body.rebuilt or body.synced)
        chained.add(number)
        previous, number = record.previous, Sequence(number - 1)
    return chained, free


def _guard(report: VerifyReport, read: Callable[[], T]) -> T | None:
    """What `read` returns, or None and a finding."""
    try:
        return read()
    except HoldfastError as error:
        report.findings.append(as_finding(error))
        return None


def _finding(
    kind: str,
    message: str,
    path: str,
    expected: object = "",
    actual: object = "",
    severity: str = "error",
) -> Finding:
    return Finding(
        severity=severity,  # type: ignore[arg-type]
        kind=kind,
        message=message,
        path=path,
        expected=str(expected),
        actual=str(actual),
    )
