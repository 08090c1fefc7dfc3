"""What a fork and its origin know of each other.

Invariants:
- A fork's files lie in its origin as long as the fork names them; the origin holds them by a pin
  whose label and note name the fork.
- The pin goes only when no live checkpoint of the fork names a file of another pipeline. What
  cannot be read counts as needed.
"""

from __future__ import annotations

import hashlib
import re

from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reader import StoreReader, list_pipelines
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.format import paths
from holdfast.format.documents import SMALL_BYTES_MAX, Pin, parse_pin
from holdfast.storage.base import StorageReader

_LABEL_MAX = 128
_NOTE = re.compile(r"shared with pipeline (?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})")


def fork_label(fork: str) -> str:
    """The label under which an origin holds what a fork shares."""
    label = f"fork-{fork}"
    if len(label) <= _LABEL_MAX:
        return label
    return f"fork-{fork[:100]}-{hashlib.sha256(fork.encode()).hexdigest()[:16]}"


def fork_note(fork: str) -> str:
    """The note of such a pin."""
    return f"shared with pipeline {fork}"


def fork_of(pin: Pin) -> str | None:
    """The fork that a pin is held for, if it is one of those."""
    match = _NOTE.fullmatch(pin.note)
    if match is None or pin.label != fork_label(match["name"]):
        return None
    return match["name"]


def uses_files_of_others(storage: StorageReader, pipeline: str) -> bool:
    """Whether a live checkpoint of a pipeline names files of another one."""
    reader = StoreReader(PipelineDirectory(storage, paths.pipeline_dir(pipeline)))
    try:
        summaries = reader.list()
    except NotFoundError:
        return False
    except HoldfastError:
        return True
    for summary in summaries:
        try:
            manifest = reader.manifest(summary)
        except HoldfastError:
            return True
        if any(entry.pipeline not in (None, pipeline) for entry in manifest.files):
            return True
    return False


def pins_for(storage: StorageReader, fork: str) -> dict[str, str]:
    """The pins that origins hold for a fork: their paths, by the names of the origins."""
    found = {}
    label = fork_label(fork)
    for name in list_pipelines(storage):
        path = f"{name}/{paths.pin(label)}"
        if name == fork or not storage.exists(path):
            continue
        try:
            pin = parse_pin(storage.get(path, bytes_max=SMALL_BYTES_MAX), path, label)
        except NotFoundError:
            continue  # let go meanwhile
        if fork_of(pin) == fork:
            found[name] = path
    return found
