"""Evidence: everything that a recovery plan is made from, read from a store that may be in use.

Invariants:
- Witnesses are called before the catalog is read; what they know and it does not is damage.
- What was retired while one looked is looked at again, for every candidate: it is no damage.
- Candidates are looked at newest first, until one is intact.
- What a recovery does not hash, it counts: nothing is trusted without saying how it is known.

Spec: spec/format-v2.md, section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from holdfast.checkpoint.commit.catalog import CatalogState, lineage
from holdfast.checkpoint.reader import Outcomes, StoreReader
from holdfast.checkpoint.recovery.rebuild import lost_but_whole
from holdfast.checkpoint.recovery.witness import against, call_witnesses, epochs_beyond
from holdfast.checkpoint.reference import Ref
from holdfast.checkpoint.verify import (
    RETIRED,
    VerifyReport,
    check_file,
    intact,
    verify_checkpoints,
)
from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    IncompatibleError,
    NotFoundError,
    StorageError,
)
from holdfast.format import paths
from holdfast.format.documents import StoreHeader, Summary
from holdfast.format.findings import Finding
from holdfast.format.manifest import MANIFEST_BYTES_MAX, Manifest, parse_manifest
from holdfast.ids import CheckpointId
from holdfast.settings import Settings

_LOOKS = 20  # at a store that changes meanwhile
_RUNS = ("snapshot", "delta")


@dataclass(frozen=True)
class Coverage:
    """How it is known that a checkpoint is whole: what was hashed, and what is checked later."""

    files: int = 0
    bytes: int = 0
    unhashed_files: int = 0
    unhashed_bytes: int = 0

    def __str__(self) -> str:
        """For the plan."""
        text = f"{self.files} files were hashed ({self.bytes} bytes)"
        if not self.unhashed_files:
            return text
        return (
            f"{text}; {self.unhashed_files} runs were compared by size only "
            f"({self.unhashed_bytes} bytes): each batch is compared with its checksum when it is "
            "read, and `recovery_verify=deep` hashes all of them first"
        )


NOTHING = Coverage()


@dataclass(frozen=True)
class Evidence:
    """Everything that the plan is made from."""

    pipeline: str
    header: StoreHeader | None
    state: CatalogState
    outcomes: Outcomes
    checked: dict[CheckpointId, tuple[Finding, ...]]
    manifests: dict[CheckpointId, Manifest]
    depth: Literal["none", "shallow", "deep"]
    epoch_seen: int
    notes: tuple[str, ...] = ()
    rescue: tuple[Summary, ...] = ()
    coverage: Coverage = NOTHING
    retired: bool = False
    failure: HoldfastError | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing contradicts anything, and what was looked for was found intact.

        What was retired while one looked has moved the catalog: it is looked at again.
        """
        usable = not self.checked or any(intact(findings) for findings in self.checked.values())
        quiet = self.failure is None and not self.state.damage and not self.retired
        return quiet and usable


def gather(reader: StoreReader, settings: Settings, resume: Ref | None = None) -> Evidence:
    """Read what a plan needs: catalog, outcomes, and candidates until one is intact.

    Another writer may commit and clean up meanwhile. What looks damaged counts only if the catalog
    has not moved since it was read.
    """
    looked: int | None = None
    for _ in range(_LOOKS):
        evidence = _gather(reader, settings, resume)
        if evidence.whole:
            return evidence
        head = _head(reader)
        if not evidence.retired and head in (None, looked, evidence.state.head):
            return evidence
        looked = head
    if evidence.retired and evidence.failure is None:
        # Not one look found all that it needed: what was seen is no base for a decision.
        busy = StorageError(
            "the pipeline retires checkpoints faster than they can be read",
            kind="busy_catalog",
            retryable=True,
            remedy="try again",
            took_effect=False,
        )
        return replace(evidence, failure=busy)
    return evidence


def _head(reader: StoreReader) -> int | None:
    try:
        return reader.head()
    except HoldfastError:
        return None  # what was found out first is the better reason


def _gather(reader: StoreReader, settings: Settings, resume: Ref | None) -> Evidence:
    empty = Evidence(
        pipeline=reader.directory.pipeline,
        header=None,
        state=CatalogState(),
        outcomes=Outcomes({}),
        checked={},
        manifests={},
        depth="none",
        epoch_seen=-1,
    )
    try:
        header = reader.header()
    except NotFoundError:
        return empty
    except HoldfastError as error:
        return replace(empty, failure=error)
    try:
        witnesses = call_witnesses(reader)
        state, outcomes = reader.catalog(), reader.outcomes()
        state = against(witnesses, state, outcomes, reader)
        target = reader.resolve(resume, catalog=state) if resume is not None else None
    except (CorruptionError, IncompatibleError, NotFoundError) as error:
        return replace(empty, header=header, failure=error)
    checked: dict[CheckpointId, tuple[Finding, ...]] = {}
    manifests: dict[CheckpointId, Manifest] = {}
    depth: Literal["none", "shallow", "deep"] = "none"
    coverage = Coverage()
    for entry in [target] if target else state.candidates:
        deep = _deep(settings, entry)
        report = VerifyReport(deep=deep)
        manifests.update(verify_checkpoints(reader, [entry], report, sizes=witnesses.sizes))
        manifest = manifests.get(entry.checkpoint)
        coverage = Coverage()
        if manifest is not None:
            coverage = _hash_more(reader, manifest, report, settings)
        checked[entry.checkpoint] = tuple(report.by_checkpoint[entry.checkpoint])
        depth = "deep" if deep else "shallow"
        if intact(checked[entry.checkpoint]):
            break
    retired = any(f.kind == RETIRED for found in checked.values() for f in found)
    ancestors = lineage(state.live, target.checkpoint).values() if target else ()
    for entry in (*state.candidates, *ancestors):
        if entry.checkpoint not in manifests and entry.checkpoint not in checked and entry.sinks:
            retired |= not _try_manifest(reader, entry, manifests)
    epoch_seen = max(state.epoch_max, outcomes.epoch_max)
    if state.damage:
        epoch_seen = max(
            epoch_seen, _epoch_of_manifests(reader), epochs_beyond(witnesses, state, reader)
        )
    return replace(
        empty,
        header=header,
        state=state,
        outcomes=outcomes,
        checked=checked,
        manifests=manifests,
        depth=depth,
        epoch_seen=epoch_seen,
        retired=retired,
        rescue=lost_but_whole(witnesses, state, reader),
        coverage=coverage,
        notes=tuple(str(finding) for finding in (*state.damage, *outcomes.damage)),
    )


def _deep(settings: Settings, entry: Summary) -> bool:
    if settings.recovery_verify == "auto":
        return entry.bytes_total <= settings.recovery_deep_bytes_max
    return settings.recovery_verify == "deep"


def _hash_more(
    reader: StoreReader, manifest: Manifest, report: VerifyReport, settings: Settings
) -> Coverage:
    """Above the limit, `auto` hashes what nothing checks later, and the newest runs up to it.

    A run has a checksum for each batch, which every read compares; no other file has one.
    """
    total = Coverage(len(manifest.files), sum(entry.size for entry in manifest.files))
    if report.deep:
        return total
    if settings.recovery_verify == "shallow":
        return Coverage(0, 0, total.files, total.bytes)
    left, files, size = settings.recovery_deep_bytes_max, 0, 0
    findings = report.by_checkpoint[manifest.checkpoint]
    newest_first = [*reversed(manifest.files)]
    newest_first.sort(key=lambda entry: entry.kind in _RUNS)
    for entry in newest_first:
        if entry.kind in _RUNS and entry.size > left:
            continue
        left -= entry.size
        files, size = files + 1, size + entry.size
        finding = check_file(
            reader.directory.storage, reader.directory.file(entry), entry, deep=True
        )
        if finding is not None and finding not in findings:
            findings.append(finding)
    return Coverage(files, size, total.files - files, total.bytes - size)


def _try_manifest(
    reader: StoreReader, entry: Summary, manifests: dict[CheckpointId, Manifest]
) -> bool:
    """Older checkpoints are read only for tokens that still wait; False if it was retired."""
    try:
        manifests[entry.checkpoint] = reader.manifest(entry)
    except NotFoundError:
        return False
    except CorruptionError:
        return True
    return True


def _epoch_of_manifests(reader: StoreReader) -> int:
    """With a damaged catalog, epochs that it forgot must not be used again."""
    highest = -1
    for entry in reader.directory.list(paths.CHECKPOINTS):
        meaning = paths.classify(entry.path)
        if meaning is None or meaning.kind != "manifest" or meaning.checkpoint is None:
            continue
        try:
            data = reader.directory.get(entry.path, bytes_max=MANIFEST_BYTES_MAX)
            highest = max(highest, parse_manifest(data, entry.path, meaning.checkpoint).epoch)
        except (CorruptionError, NotFoundError):
            continue  # one that was retired since it was listed has an epoch of the catalog
    return highest
