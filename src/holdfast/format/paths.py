"""Every path that Holdfast can write, in one place, and the way back from a path to its meaning.

Invariants:
- Paths are made from checked names and numbers only; none can leave the root.
- `classify` knows exactly the paths that these functions can make: what it does not know is a
  foreign file, which Holdfast reports and never deletes.

Spec: spec/format-v2.md, section 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import InvalidInputError
from holdfast.ids import (
    NAME_PATTERN,
    CheckpointId,
    Epoch,
    Name,
    Sequence,
    check_checkpoint_id,
    check_name,
)

HEADER = "holdfast.json"
LATEST = "_latest"
LOCK = "lock"
CATALOG = "catalog"
CHECKPOINTS = "checkpoints"
OUTCOMES = "outcomes"
PINS = "pins"
TEMPORARY_PREFIX = ".hf-tmp-"
NUMBER_MAX = 2**63 - 1

_ID = r"(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"

Kind = Literal[
    "header",
    "latest",
    "lock",
    "record",
    "manifest",
    "segment",
    "run",
    "blob",
    "pack",
    "offsets",
    "outcome",
    "pin",
    "temporary",
]

ARTIFACTS: tuple[Kind, ...] = ("run", "blob", "pack", "offsets", "segment")

_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("temporary", re.compile(rf"(?:{_NAME}/)*\.hf-tmp-[0-9a-f]{{16}}")),
    ("header", re.compile(re.escape(HEADER))),
    ("latest", re.compile(LATEST)),
    ("lock", re.compile(LOCK)),
    ("record", re.compile(rf"{CATALOG}/(?P<sequence>[0-9]{{20}})\.json")),
    ("manifest", re.compile(rf"{CHECKPOINTS}/{_ID}/manifest\.json")),
    ("pack", re.compile(rf"{CHECKPOINTS}/{_ID}/state\.pack")),
    (
        "run",
        re.compile(
            rf"{CHECKPOINTS}/{_ID}/operators/(?P<name>{_NAME})/"
            rf"partition-(?P<partition>[0-9]{{5}})-(?P<attempt>[0-9a-f]{{16}})\.(?P<suffix>snap|delta)"
        ),
    ),
    (
        "blob",
        re.compile(
            rf"{CHECKPOINTS}/{_ID}/operators/(?P<name>{_NAME})/"
            rf"blob-(?P<partition>[0-9]{{5}})-(?P<attempt>[0-9a-f]{{16}})\.bin"
        ),
    ),
    ("segment", re.compile(rf"{CHECKPOINTS}/{_ID}/segments/(?P<attempt>[0-9a-f]{{16}})\.json")),
    ("offsets", re.compile(rf"{CHECKPOINTS}/{_ID}/offsets/(?P<name>{_NAME})\.json")),
    (
        "outcome",
        re.compile(
            rf"{OUTCOMES}/(?P<epoch>[0-9]{{20}})-(?P<attempt>[0-9]{{6}})-(?P<name>{_NAME})\.json"
        ),
    ),
    ("pin", re.compile(rf"{PINS}/(?P<name>{_NAME})\.json")),
)

MANIFEST_END = "/manifest.json"
_RUN = dict(_PATTERNS)["run"]

# What a path begins with leaves few patterns to try; only temporary files lie anywhere. Below
# `checkpoints` it is the part after the id: most files are runs, and there are many.
_BY_HEAD: dict[str, list[tuple[Kind, re.Pattern[str]]]] = {}
for _kind, _pattern in _PATTERNS:
    _parts = _pattern.pattern.replace("\\", "").split("/")
    _head = _parts[2] if _parts[0] == CHECKPOINTS else _parts[0]
    _BY_HEAD.setdefault(f"/{_head}" if _parts[0] == CHECKPOINTS else _head, []).append(
        (_kind, _pattern)
    )


# Parts without separators, control characters or backslashes; none of them `.` or `..`.
_RELATIVE = re.compile(r"(?:(?!\.{1,2}(?:/|$))[^/\x00-\x1f\x7f\\\ud800-\udfff]+(?:/(?!$)|$))+")


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """What a path inside a pipeline's directory stands for."""

    kind: Kind
    checkpoint: CheckpointId | None = None
    name: str | None = None
    sequence: Sequence | None = None
    epoch: Epoch | None = None
    attempt: int | None = None


def classify(path: str) -> ParsedPath | None:
    """The meaning of a path relative to a pipeline's directory; None for a foreign file."""
    parts = path.split("/", 3)
    head = f"/{parts[2]}" if parts[0] == CHECKPOINTS and len(parts) > 2 else parts[0]
    for kind, pattern in _PATTERNS if TEMPORARY_PREFIX in path else _BY_HEAD.get(head, ()):
        match = pattern.fullmatch(path)
        if match is None:
            continue
        groups = match.groupdict()
        sequence, epoch = groups.get("sequence"), groups.get("epoch")
        if max(int(sequence or 0), int(epoch or 0)) > NUMBER_MAX:
            return None
        checkpoint = groups.get("id")
        return ParsedPath(
            kind=kind,
            checkpoint=CheckpointId(checkpoint) if checkpoint else None,
            name=groups.get("name"),
            sequence=Sequence(int(sequence)) if sequence else None,
            epoch=Epoch(int(epoch)) if epoch else None,
            attempt=int(groups["attempt"]) if kind == "outcome" else None,
        )
    return None


def parse_run(path: str) -> re.Match[str] | None:
    """A run's `name`, `partition` and `suffix`, for those who look at very many paths."""
    return _RUN.fullmatch(path)


def record(sequence: Sequence) -> str:
    """Catalog record number `sequence`."""
    _check_number(sequence, "sequence")
    return f"{CATALOG}/{sequence:020d}.json"


def checkpoint_dir(checkpoint: CheckpointId) -> str:
    """The directory of everything that one checkpoint created."""
    return f"{CHECKPOINTS}/{check_checkpoint_id(checkpoint)}"


def manifest(checkpoint: CheckpointId) -> str:
    """The manifest of one checkpoint."""
    return f"{checkpoint_dir(checkpoint)}/manifest.json"


def pack(checkpoint: CheckpointId) -> str:
    """The packed small state of one checkpoint."""
    return f"{checkpoint_dir(checkpoint)}/state.pack"


def segment(checkpoint: CheckpointId, attempt: str) -> str:
    """A list of files that manifests share."""
    return f"{checkpoint_dir(checkpoint)}/segments/{_token(attempt)}.json"


def run(
    checkpoint: CheckpointId, operator: str, partition: int, attempt: str, *, snapshot: bool
) -> str:
    """One run. `attempt` is unique for each try of a task, so a retry never reuses a name."""
    name = check_name(operator, "operator name")
    file = f"partition-{_attempt(partition, attempt)}.{'snap' if snapshot else 'delta'}"
    return f"{checkpoint_dir(checkpoint)}/operators/{name}/{file}"


def blob(checkpoint: CheckpointId, operator: str, number: int, attempt: str) -> str:
    """One opaque file of an operator, whose bytes mean something to the operator alone."""
    folder = f"{checkpoint_dir(checkpoint)}/operators/{check_name(operator, 'operator name')}"
    return f"{folder}/blob-{_attempt(number, attempt)}.bin"


def _attempt(partition: int, attempt: str) -> str:
    if not 0 <= partition < 100_000:
        raise InvalidInputError(
            "partition is out of range", kind="invalid_partition", partition=partition, limit=99_999
        )
    return f"{partition:05d}-{_token(attempt)}"


def _token(attempt: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{16}", attempt):
        raise InvalidInputError(
            "attempt is not allowed",
            kind="invalid_attempt",
            attempt=repr(attempt)[:60],
            remedy="take it from IdSource.token(): 16 hexadecimal digits",
        )
    return attempt


def offsets(checkpoint: CheckpointId, source: str) -> str:
    """Positions of one source that are too large for the manifest."""
    return f"{checkpoint_dir(checkpoint)}/offsets/{check_name(source, 'source name')}.json"


def outcome(epoch: Epoch, sink: str, attempt: int) -> str:
    """The n-th outcome of one sink's token."""
    _check_number(epoch, "epoch")
    if not 0 <= attempt < 1_000_000:
        raise InvalidInputError("outcome attempt is out of range", attempt=attempt, limit=999_999)
    return f"{OUTCOMES}/{epoch:020d}-{attempt:06d}-{check_name(sink, 'sink name')}.json"


def outcomes_of(epoch: Epoch) -> str:
    """What the paths of all outcomes of one epoch begin with; `OUTCOMES_OF_LENGTH` characters."""
    _check_number(epoch, "epoch")
    return f"{OUTCOMES}/{epoch:020d}-"


OUTCOMES_OF_LENGTH = len(OUTCOMES) + 22


def pin(label: str) -> str:
    """The savepoint of that label."""
    return f"{PINS}/{check_name(label, 'label')}.json"


def temporary(directory: str, token: str) -> str:
    """A temporary name next to the final one."""
    return f"{directory}/{TEMPORARY_PREFIX}{token}" if directory else f"{TEMPORARY_PREFIX}{token}"


def is_artifact_path(path: str) -> bool:
    """Whether a manifest may name this path: a run, blob, pack, offsets or segment."""
    meaning = classify(path)
    return meaning is not None and meaning.kind in ARTIFACTS


def check_relative(path: str) -> str:
    """Accept a storage path: relative, no empty, `.` or `..` part, no control characters."""
    if len(path) > 1_000 or not _RELATIVE.fullmatch(path):
        raise InvalidInputError(
            "path would leave the store or cannot be stored",
            kind="invalid_path",
            path=repr(path)[:200],
            remedy="use the functions of holdfast.format.paths",
        )
    return path


def pipeline_dir(pipeline: str) -> Name:
    """The directory of a pipeline below the root."""
    return check_name(pipeline, "pipeline name")


def _check_number(value: int, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= NUMBER_MAX:
        raise InvalidInputError(
            f"{what} is out of range", kind=f"invalid_{what}", value=repr(value)[:60]
        )


def valid_name(value: str) -> bool:
    """Whether a name could have come through `check_name`."""
    return NAME_PATTERN.fullmatch(value) is not None
