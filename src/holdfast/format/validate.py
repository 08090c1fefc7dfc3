"""What must hold inside one manifest beyond its types, with a severity on every finding.

Spec: spec/format-v2.md, section 3.4.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from holdfast.format import paths
from holdfast.format.canonical import sha256_hex
from holdfast.format.documents import Counts
from holdfast.format.findings import Finding, Severity
from holdfast.format.inventory import NO_FILES
from holdfast.format.manifest import FileEntry, InlineState, Manifest, OperatorEntry, PackedState
from holdfast.format.position import FilesPosition
from holdfast.format.topology import VNODES_MAX, fingerprint, valid_vnodes
from holdfast.ids import UUID7_PATTERN, VNODE_COUNT

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HASH_MAX = 2**64 - 1
_RUN_KINDS = {("snap", "snapshot"), ("delta", "delta")}


def validate(manifest: Manifest, *, parent: Manifest | None = None) -> list[Finding]:
    """Everything that is wrong or odd about a manifest, worst first.

    Entries that were taken over unchanged from a `parent` that is known to be valid are not looked
    at again, so that the cost of a commit follows the size of the change.
    """
    if parent is not None and not _vouches(parent, manifest):
        parent = None
    findings = [
        *_identity(manifest),
        *_topology(manifest),
        *_files(manifest, parent),
        *_small_state(manifest),
        *_watermarks(manifest),
        *_segments(manifest),
        *_totals(manifest, parent),
        *_counts(manifest),
    ]
    rank = {"error": 0, "warning": 1, "info": 2}
    return sorted(findings, key=lambda finding: rank[finding.severity])


def findings_about(manifest: Manifest) -> list[Finding]:
    """`validate` for a manifest that nobody changes any more: looked at once."""
    known: list[Finding] | None = manifest.__dict__.get("findings")
    if known is None:
        known = manifest.__dict__["findings"] = validate(manifest)
    return known


def _find(severity: Severity, kind: str, message: str, **facts: object) -> Finding:
    return Finding(
        severity=severity, kind=kind, message=message, **{k: str(v) for k, v in facts.items()}
    )


def _identity(manifest: Manifest) -> Iterator[Finding]:
    if not UUID7_PATTERN.fullmatch(manifest.checkpoint):
        yield _find("error", "bad_id", "checkpoint id is not a UUIDv7", actual=manifest.checkpoint)
    if manifest.parent == manifest.checkpoint:
        yield _find("error", "own_parent", "checkpoint is its own parent")
    if not paths.valid_name(manifest.pipeline):
        yield _find("error", "bad_name", "pipeline name is not allowed", actual=manifest.pipeline)
    if manifest.label is not None and not paths.valid_name(manifest.label):
        yield _find("error", "bad_name", "label is not allowed", actual=manifest.label)
    if manifest.epoch < 0 or manifest.sequence < 0:
        yield _find("error", "negative", "epoch and sequence cannot be negative")
    expected = fingerprint(manifest.topology)
    if manifest.fingerprint != expected:
        yield _find(
            "error",
            "fingerprint_differs",
            "fingerprint does not belong to the topology",
            expected=expected,
            actual=manifest.fingerprint,
        )
    if not valid_vnodes(manifest.topology.vnodes):
        yield _find(
            "error",
            "vnodes_differ",
            "number of vnodes is no power of two that a store may have",
            expected=f"{VNODE_COUNT} to {VNODES_MAX}",
            actual=manifest.topology.vnodes,
        )


def _topology(manifest: Manifest) -> Iterator[Finding]:
    """Entries and topology must name the same parts, in both directions."""
    known = manifest.topology
    for name in (part.name for part in known.parts):
        if not paths.valid_name(name):
            yield _find("error", "bad_name", "name is not allowed", actual=name)
    yield from _match("source", known.names("source"), [s.name for s in manifest.sources])
    yield from _match("sink", known.names("sink"), [s.name for s in manifest.sinks], missing="info")
    keepers = [*known.names("operator"), *known.names("table")]
    entries = [operator.name for operator in manifest.operators]
    yield from _match("operator", keepers, entries, missing="info")
    for part in known.parts:
        if part.stateful and part.name not in entries:
            yield _find("error", "state_missing", f"state of {part.name} is missing")
    for sink in manifest.sinks:
        if sink.epoch != manifest.epoch:
            yield _find(
                "error",
                "sink_epoch_differs",
                f"sink {sink.name} staged another epoch",
                expected=manifest.epoch,
                actual=sink.epoch,
            )
    for source in manifest.sources:
        if source.epoch > manifest.epoch:
            yield _find(
                "error",
                "source_epoch_ahead",
                f"source {source.name} is ahead of the checkpoint",
                expected=manifest.epoch,
                actual=source.epoch,
            )


def _match(
    kind: str, known: Iterable[str], entries: list[str], missing: Severity = "error"
) -> Iterator[Finding]:
    for name, count in Counter(entries).items():
        if count > 1:
            yield _find("error", "duplicate_entry", f"{kind} {name} has {count} entries")
    for name in sorted(set(entries) - set(known)):
        yield _find("error", "orphan", f"{kind} {name} is not part of the topology")
    for name in sorted(set(known) - set(entries)):
        yield _find(missing, "without_entry", f"{kind} {name} has no entry")


def _vouches(parent: Manifest, manifest: Manifest) -> bool:
    """Whether entries that the parent has as well are right here, too."""
    names = {entry.name for entry in manifest.operators}
    return manifest.incremental and names.issuperset(entry.name for entry in parent.operators)


def _files(manifest: Manifest, parent: Manifest | None) -> Iterator[Finding]:
    own = manifest.own_prefix()
    stateful = {entry.name for entry in manifest.operators}
    inventory = manifest.inventory
    before = parent.inventory if parent else NO_FILES
    new = inventory.unlike(before)
    for path in inventory.repeated(before, new):
        yield _find("error", "duplicate_file", "file is listed more than once", path=path)
    for entry in new:
        if not (manifest.incremental and _plain_run(entry, stateful, manifest.topology.vnodes)):
            yield from _file(manifest, entry, own, stateful)
    listed = {entry.path for entry in inventory.other if entry.kind == "offsets"}
    for source in manifest.sources:
        position = source.position
        if isinstance(position, FilesPosition) and position.log not in {None, *listed}:
            yield _find(
                "error",
                "log_not_listed",
                f"log of source {source.name} is not in the inventory",
                path=position.log,
            )


def _plain_run(entry: FileEntry, stateful: set[str], vnodes: int) -> bool:
    """Whether `_file` would find nothing; for most entries of a long inventory, in one go."""
    path = paths.parse_run(entry.path)
    low, high = entry.hash_min, entry.hash_max
    first, after = entry.vnode_low, entry.vnode_high
    if path is None or None in (low, high, first, after, entry.partition):
        return False
    return (
        path["name"] == entry.operator
        and entry.operator in stateful
        and int(path["partition"]) == entry.partition
        and (path["suffix"], entry.kind) in _RUN_KINDS
        and (entry.kind == "snapshot" or entry.base is not None)
        and entry.pipeline is None
        and entry.size >= 0
        and _SHA256.fullmatch(entry.sha256) is not None
        and 0 <= low <= high <= _HASH_MAX  # type: ignore[operator]
        and 0 <= first < after <= vnodes  # type: ignore[operator]
    )


def _file(manifest: Manifest, entry: FileEntry, own: str, stateful: set[str]) -> Iterator[Finding]:
    meaning = paths.classify(entry.path)
    if meaning is None or meaning.kind not in paths.ARTIFACTS:
        yield _find("error", "bad_path", "not a path that a manifest may name", path=entry.path)
        return
    wanted = {"snapshot": "run", "delta": "run"}.get(entry.kind, entry.kind)
    suffix = {"snapshot": ".snap", "delta": ".delta"}.get(entry.kind, "")
    if meaning.kind != wanted or not entry.path.endswith(suffix):
        yield _find(
            "error",
            "kind_differs",
            "kind of file and path disagree",
            path=entry.path,
            expected=meaning.kind,
            actual=entry.kind,
        )
    if entry.pipeline is not None and not paths.valid_name(entry.pipeline):
        yield _find(
            "error", "bad_name", "pipeline of a shared file is not allowed", path=entry.path
        )
    if entry.size < 0 or not _SHA256.fullmatch(entry.sha256):
        yield _find("error", "bad_digest", "size or digest is impossible", path=entry.path)
    if entry.kind == "delta" and entry.base is None:
        yield _find("error", "delta_without_base", "delta does not name its base", path=entry.path)
    if meaning.kind in ("run", "blob"):
        yield from _run(entry, meaning.name, stateful)
    yield from _hash_range(entry)
    yield from _vnode_range(entry, manifest.topology.vnodes)
    if not manifest.incremental and not entry.path.startswith(own):
        yield _find(
            "error",
            "inherits",
            "a full checkpoint cannot refer to files of others",
            path=entry.path,
        )


def _run(entry: FileEntry, name: str | None, stateful: set[str]) -> Iterator[Finding]:
    if entry.operator != name:
        yield _find(
            "error",
            "operator_differs",
            "path and entry name different operators",
            path=entry.path,
            expected=name,
            actual=entry.operator,
        )
    if entry.operator not in stateful:
        yield _find("error", "orphan_file", "file belongs to no operator", path=entry.path)
    if entry.partition is None:
        yield _find("error", "no_partition", "file does not say its partition", path=entry.path)
    elif f"-{entry.partition:05d}-" not in entry.path.rpartition("/")[2]:
        yield _find(
            "error",
            "partition_differs",
            "path and entry name different partitions",
            path=entry.path,
            actual=entry.partition,
        )


def _hash_range(entry: FileEntry) -> Iterator[Finding]:
    low, high = entry.hash_min, entry.hash_max
    if (low is None) != (high is None) or (
        low is not None and high is not None and not 0 <= low <= high <= _HASH_MAX
    ):
        yield _find("error", "bad_hash_range", "hash range is impossible", path=entry.path)


def _vnode_range(entry: FileEntry, vnodes: int) -> Iterator[Finding]:
    low, high = entry.vnode_low, entry.vnode_high
    if (low is None) != (high is None) or (
        low is not None and high is not None and not 0 <= low < high <= vnodes
    ):
        yield _find("error", "bad_vnode_range", "range of vnodes is impossible", path=entry.path)


def _segments(manifest: Manifest) -> Iterator[Finding]:
    """A segment is a file of its own, named in one place only, and says truly what has left it."""
    for segment in manifest.segments:
        if segment.files < 1 or segment.bytes < 0:
            yield _find("error", "bad_segment", "a segment lists no files", path=segment.path)
        gone = segment.gone
        ascending = all(first < second for first, second in pairwise(gone))
        if gone and not (ascending and gone[0] >= 0 and gone[-1] < segment.files):
            yield _find(
                "error", "bad_segment", "places of a segment are impossible", path=segment.path
            )
        elif len(gone) == segment.files:
            yield _find("error", "bad_segment", "nothing of a segment is left", path=segment.path)
    for entry in manifest.inventory.other:
        if entry.kind == "segment":
            yield _find(
                "error",
                "bad_segment",
                "a segment is listed as a file, not as a segment",
                path=entry.path,
            )


_RANK: dict[Counts, int] = {"live": 0, "bound": 1, "unknown": 2}


def counts_of(operators: Iterable[OperatorEntry]) -> Counts:
    """What a sum over operators is: as good as the worst of them; few bytes count as nothing."""
    kinds: list[Counts] = [entry.counts for entry in operators if entry.trace in ("latest", "bag")]
    return max(kinds, key=lambda kind: _RANK[kind], default="live")


def _counts(manifest: Manifest) -> Iterator[Finding]:
    """What the manifest says about its counts is what its operators say; sums are sums."""
    if manifest.format == 1:
        return
    if manifest.counts != counts_of(manifest.operators):
        yield _find(
            "error",
            "counts_differ",
            "operators say otherwise what their counts are",
            expected=counts_of(manifest.operators),
            actual=manifest.counts,
        )
    for what in ("rows", "keys"):
        actual = sum(getattr(entry, what) for entry in manifest.operators)
        stated = getattr(manifest, what)
        if stated != actual:
            yield _find(
                "error",
                "total_differs",
                f"{what} is not the sum over operators",
                expected=actual,
                actual=stated,
            )


def _small_state(manifest: Manifest) -> Iterator[Finding]:
    """Ranges lie inside their pack and do not overlap; inline bytes match their digest."""
    packs = {entry.path: entry for entry in manifest.inventory.other if entry.kind == "pack"}
    ranges: dict[str, list[tuple[int, int, str]]] = {}
    for operator in manifest.operators:
        small = operator.small
        if isinstance(small, InlineState) and sha256_hex(small.data) != small.sha256:
            yield _find(
                "error",
                "digest_differs",
                f"inline state of {operator.name} has other content",
                expected=small.sha256,
                actual=sha256_hex(small.data),
            )
        if isinstance(small, PackedState):
            yield from _packed(operator, small, packs)
            ranges.setdefault(small.path, []).append((small.offset, small.length, operator.name))
        if small is None and operator.trace == "small":
            yield _find("error", "no_state", f"operator {operator.name} has lost its small state")
        if small is not None and operator.trace != "small":
            yield _find("error", "two_states", f"operator {operator.name} has two kinds of state")
    for path, taken in ranges.items():
        taken.sort()
        for (start, length, name), (after, _, other) in pairwise(taken):
            if start + length > after:
                yield _find(
                    "error", "ranges_overlap", f"states of {name} and {other} overlap", path=path
                )


def _packed(
    operator: OperatorEntry, small: PackedState, packs: dict[str, FileEntry]
) -> Iterator[Finding]:
    pack = packs.get(small.path)
    if pack is None:
        yield _find(
            "error",
            "pack_not_listed",
            f"pack of {operator.name} is not in the inventory",
            path=small.path,
        )
    elif small.offset < 0 or small.length < 0 or small.offset + small.length > pack.size:
        yield _find(
            "error",
            "range_outside",
            f"state of {operator.name} runs past its pack",
            path=small.path,
            expected=f"at most {pack.size}",
            actual=small.offset + small.length,
        )


def _watermarks(manifest: Manifest) -> Iterator[Finding]:
    """The pipeline's watermark cannot be ahead of its slowest busy source."""
    busy = [s for s in manifest.sources if s.watermark_us is not None and not s.idle]
    if manifest.watermark_us is None or not busy:
        return
    slowest = min(busy, key=lambda source: source.watermark_us or 0)
    if slowest.watermark_us is not None and manifest.watermark_us > slowest.watermark_us:
        yield _find(
            "warning",
            "watermark_ahead",
            f"watermark is ahead of source {slowest.name}",
            expected=f"at most {slowest.watermark_us}",
            actual=manifest.watermark_us,
        )


def _totals(manifest: Manifest, parent: Manifest | None) -> Iterator[Finding]:
    own = manifest.own_prefix()
    candidates = manifest.inventory.unlike(parent.inventory if parent else NO_FILES)
    new = sum(e.size for e in candidates if e.pipeline is None and e.path.startswith(own))
    total = manifest.inventory.bytes
    for what, stated, actual in (
        ("bytes_new", manifest.bytes_new, new),
        ("bytes_total", manifest.bytes_total, total),
    ):
        if stated != actual:
            yield _find(
                "error",
                "total_differs",
                f"{what} does not match the inventory",
                expected=actual,
                actual=stated,
            )
