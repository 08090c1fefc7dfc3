"""Verifying: is the live checkpoint what the query left, and are its savepoints what was saved?

Invariants:
- Every byte of every file that Spark might read is compared with something: the savepoint's
  SHA-256, the checksum that Hadoop or Spark left next to it, or both. What nothing covers is said.
- Logs must agree with each other: numbers without gaps, a batch begins with the watermark that the
  batch before it has promised, every store has the state version of the last commit.
- A finding names its file. What cannot be read is a finding, never a crash.

Spec: spec/guard-v1.md, section 5.
"""

from __future__ import annotations

import copy
import functools
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from os import PathLike
from typing import Any

from holdfast.checkpoint import verify_store
from holdfast.checkpoint.reader import as_finding
from holdfast.errors import CorruptionError, HoldfastError, NotFoundError
from holdfast.format.canonical import sha256_hex
from holdfast.format.findings import Finding, Severity, errors_of
from holdfast.guard.checkpoint_location import (
    CheckpointLocation,
    LocationListing,
    MovedError,
    normal,
)
from holdfast.guard.closure import compute, last_committed
from holdfast.guard.index import Index
from holdfast.guard.savepoints import Savepoints
from holdfast.guard.spark_files import layout
from holdfast.guard.spark_files.checksum import HadoopCheck, check_hadoop, check_spark
from holdfast.guard.spark_files.metadata_logs import (
    Offsets,
    log_offset,
    parse_commit,
    parse_offsets,
    parse_operator,
    parse_query_id,
    parse_rocks,
    parse_source_log,
)
from holdfast.storage.base import StorageReader


@dataclass
class GuardReport:
    """What was checked and what was found.

    batch: last committed one of the live checkpoint. savepoint: batch of the last savepoint.
    covered: live files whose bytes were compared with a digest or checksum.
    """

    location: str
    findings: list[Finding] = field(default_factory=list)
    batch: int | None = None
    savepoint: int | None = None
    files: int = 0
    covered: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing forbids a start."""
        return not errors_of(self.findings)

    def finding(
        self, kind: str, message: str, path: str = "", severity: Severity = "error"
    ) -> None:
        """One more finding."""
        self.findings.append(Finding(severity=severity, kind=kind, message=message, path=path))

    def check(self) -> None:
        """Raise when something forbids a start."""
        wrong = errors_of(self.findings)
        if wrong:
            raise CorruptionError(
                f"the checkpoint must not be used: {wrong[0].message}",
                kind="checkpoint_damaged",
                location=self.location,
                path=wrong[0].path or None,
                findings="; ".join(str(finding) for finding in wrong[:10]),
                remedy="restore a savepoint with `holdfast guard restore`; nothing was started",
            )


def verify(
    checkpoint_location: str | PathLike[str],
    store: str | PathLike[str] | StorageReader | None = None,
    *,
    name: str | None = None,
    deep: bool = True,
    options: dict[str, Any] | None = None,
) -> GuardReport:
    """Check a live checkpoint, and with a store also against its last savepoint.

    The query should not be running. deep: also hash every byte of every savepoint.
    """
    report = GuardReport(normal(checkpoint_location))
    index = None
    if store is not None:
        index = _verify_savepoints(report, checkpoint_location, store, name, deep, options)
    else:
        report.finding("no_store", "no store was given: own consistency only", severity="info")
    try:
        live = CheckpointLocation.open(checkpoint_location, options=options)
    except NotFoundError:
        _nothing_there(report, index)
        return report
    with live:
        for left in reversed(range(_LOOKS)):
            listing = live.list()
            if not listing.entries:
                _nothing_there(report, index)
                return report
            look = copy.deepcopy(report)
            check = _Check(live, listing, look, index)
            check.run()
            if not check.moved or not left:
                break  # Spark cleans up for a while after a query has stopped: then look again
    return look


def _nothing_there(report: GuardReport, index: Index | None) -> None:
    if index is not None:
        report.finding(
            "checkpoint_gone", f"the checkpoint is gone, but batch {index.batch} was saved"
        )
    else:
        report.finding("fresh", "there is no checkpoint yet: a fresh start", severity="info")


def _verify_savepoints(
    report: GuardReport,
    location: str | PathLike[str],
    store: str | PathLike[str] | StorageReader,
    name: str | None,
    deep: bool,  # noqa: FBT001 - private
    options: dict[str, Any] | None,
) -> Index | None:
    try:
        savepoints = Savepoints.open(store, location=location, name=name, options=options)
    except NotFoundError:
        report.finding(
            "no_savepoint", "the query was never saved in this store", severity="warning"
        )
        return None
    except HoldfastError as error:
        report.findings.append(as_finding(error))
        return None
    report.findings.extend(verify_store(savepoints.reader, deep=deep).all_findings())
    try:
        for summary in savepoints.reader.list():
            savepoints.index(savepoints.reader.manifest(summary))
    except HoldfastError as error:
        report.findings.append(as_finding(error))
    try:
        found = savepoints.latest()
    except HoldfastError as error:
        report.findings.append(as_finding(error))
        return None
    if found is None:
        report.finding(
            "no_savepoint", "the query was never saved in this store", severity="warning"
        )
        return None
    report.savepoint = found[1].batch
    return found[1]


class _Check:
    """One pass over a live checkpoint."""

    def __init__(
        self,
        live: CheckpointLocation,
        listing: LocationListing,
        report: GuardReport,
        index: Index | None,
    ) -> None:
        self._live = live
        self._listing = listing
        self._report = report
        self._saved = index.by_path() if index else {}
        self._index = index
        self._offsets: dict[int, Offsets] = {}
        self._promised: dict[int, int] = {}
        self._step: dict[str, bytes] = {}
        self._closed = False
        self.moved = False
        """Whether a file that was listed was gone when it was read."""

    def run(self) -> None:
        for path in self._listing.foreign:
            self._report.finding("unknown_layout", "not a file that Spark writes here", path)
        for path in sorted(self._listing.entries):
            self._attempt(functools.partial(self._file, path))
        self._steps()
        self._logs()
        batch = self._report.batch = last_committed(self._listing)
        if batch is None:
            self._report.finding("no_commit", "no batch was committed yet", severity="info")
        else:
            self._attempt(lambda: self._closure(batch))
        self._against_savepoint(batch)

    def _attempt(self, check: Callable[[], None]) -> None:
        try:
            check()
        except MovedError as error:
            self.moved = True
            path = str(error.facts.get("path", ""))
            self._report.finding("missing", "a file that the last batch needs is missing", path)
        except HoldfastError as error:
            found = as_finding(error)
            if found not in self._report.findings:
                self._report.findings.append(found)

    # Bytes

    def _file(self, path: str) -> None:
        """Compare one file with everything that is known about it; then read it as Spark would."""
        meaning = self._listing.meanings[path]
        entry = self._listing.entries[path]
        self._report.files += 1
        self._report.bytes += entry.size
        if entry.size > _LARGE_BYTES:
            self._large(path)
            return
        data = self._live.read(path)
        covered = meaning.kind == "hadoop"
        saved = self._saved.get(path)
        if saved is not None:
            covered = True
            self._same(path, sha256_hex(data), saved.sha256)
        sidecar = layout.hadoop_sidecar(path)
        if meaning.kind == "hadoop":
            self._step[path] = data[4:8]
            if layout.checked_by(path) not in self._listing.entries:
                self._report.finding(
                    "orphan_checksum", "checksum of a file that is not there", path, "warning"
                )
        elif sidecar in self._listing.entries:
            covered = True
            check_hadoop(data, self._live.read(sidecar), path, sidecar)
        sidecar = layout.spark_sidecar(path)
        if sidecar and sidecar in self._listing.entries:
            covered |= check_spark(data, self._live.read(sidecar), path, sidecar)
        if covered:
            self._report.covered += 1
        else:
            self._report.finding("not_covered", "no checksum covers this file", path, "warning")
        self._parse(path, meaning, data)

    def _large(self, path: str) -> None:
        """Large files are hashed and compared piece by piece."""
        size = self._listing.entries[path].size
        saved, sidecar = self._saved.get(path), layout.hadoop_sidecar(path)
        check = None
        if sidecar in self._listing.entries:
            check = HadoopCheck(self._live.read(sidecar), size, path, sidecar)
        digest = hashlib.sha256()
        for chunk in self._live.chunks(path, size):
            digest.update(chunk)
            if check is not None:
                check.feed(chunk)
        if saved is not None:
            self._same(path, digest.hexdigest(), saved.sha256)
        if check is not None:
            check.finish()
        if check is None and saved is None:
            self._report.finding("not_covered", "no checksum covers this file", path, "warning")
        else:
            self._report.covered += 1

    def _same(self, path: str, actual: str, expected: str) -> None:
        if actual != expected:
            self._report.findings.append(
                Finding(
                    severity="error",
                    kind="differs_from_savepoint",
                    path=path,
                    message="file differs from the last savepoint",
                    expected=expected,
                    actual=actual,
                )
            )

    def _steps(self) -> None:
        """All sidecars cover pieces of one size: a damaged size can fit a short file by chance."""
        usual = Counter(self._step.values()).most_common(1)
        for path, step in self._step.items():
            if step != usual[0][0]:
                self._report.finding("spark_file_damaged", "checksum file is damaged", path)

    # Meaning

    def _parse(self, path: str, meaning: layout.SparkPath, data: bytes) -> None:
        batch = meaning.batch or 0
        if meaning.kind == "metadata":
            query = parse_query_id(data, path)
            if self._index is not None and query != self._index.query:
                raise CorruptionError(
                    "the checkpoint belongs to another query than its savepoints",
                    kind="query_differs",
                    path=path,
                    expected=self._index.query,
                    actual=query,
                )
        elif meaning.kind == "offset":
            self._offsets[batch] = parse_offsets(data, path)
        elif meaning.kind == "commit":
            self._promised[batch] = parse_commit(data, path).nextBatchWatermarkMs
        elif meaning.kind == "operator":
            parse_operator(data, path)
        elif meaning.kind == "zip":
            parse_rocks(data, path)

    def _logs(self) -> None:
        listing, report = self._listing, self._report
        if "metadata" not in listing.entries:
            report.finding("missing", "the query id is missing", "metadata")
        offsets, commits = listing.batches("offset"), listing.batches("commit")
        for kind, numbers in (("offsets", offsets), ("commits", commits)):
            for left, right in pairwise(numbers):
                if right != left + 1:
                    report.finding(
                        "log_gap", f"the log has a gap after {left}", f"{kind}/{left + 1}"
                    )
        if commits and (not offsets or commits[-1] > offsets[-1]):
            report.finding("commit_ahead", "a commit has no offsets", f"commits/{commits[-1]}")
        if offsets and offsets[-1] > (commits[-1] if commits else offsets[0] - 1) + 1:
            report.finding(
                "offsets_ahead", "more than one batch is not committed", f"offsets/{offsets[-1]}"
            )
        for batch, entry in sorted(self._offsets.items()):
            promised = self._promised.get(batch - 1)
            if promised is not None and entry.metadata.batchWatermarkMs != promised:
                report.findings.append(
                    Finding(
                        severity="error",
                        kind="watermark_differs",
                        path=f"offsets/{batch}",
                        message="watermark is not the one that the batch before has promised",
                        expected=str(promised),
                        actual=str(entry.metadata.batchWatermarkMs),
                    )
                )
        self._source_logs()

    def _source_logs(self) -> None:
        """A file source's log decodes, and does not claim more than the newest offsets."""
        if not self._offsets:
            return
        newest = self._offsets[max(self._offsets)]
        for name, text in newest.sources:
            last = log_offset(text)
            if last is None:
                continue
            for path, meaning in self._listing.of("source"):
                if meaning.source != name:
                    continue
                self._attempt(functools.partial(self._source_log, path))
                if (meaning.batch or 0) > last + 1:
                    self._report.finding(
                        "source_ahead",
                        "the source's log is ahead of the offsets: batches would be merged",
                        path,
                        "warning",
                    )

    def _source_log(self, path: str) -> None:
        parse_source_log(self._live.read(path), path)

    def _closure(self, batch: int) -> None:
        compute(self._live, self._listing, batch)
        self._closed = True

    def _against_savepoint(self, batch: int | None) -> None:
        index = self._index
        if index is None:
            return
        if batch is None or batch < index.batch:
            self._report.finding(
                "behind_savepoint",
                f"the checkpoint is at batch {batch}, but batch {index.batch} was saved",
            )
        elif batch == index.batch:
            for file in index.files:
                if file.path in self._listing.entries or file.path.startswith(layout.SINK_LOG):
                    continue
                # Spark makes snapshots of the same batch later, during and after the query, and
                # deletes what they replace: nothing is lost where all that a batch needs is there.
                if self._closed and file.path.startswith("state/"):
                    continue
                self._report.finding("missing", "file of the last savepoint is gone", file.path)


_LOOKS = 5
_LARGE_BYTES = 64 * 1024 * 1024
