"""The hint `_latest`: for people and monitors, and a witness of records that were lost.

Invariants:
- Recovery never resumes from it; that it knows more than the catalog is damage (`witness.py`).
- It is written after what it tells of is durable, and is never worth failing for.
- Every epoch and record number up to the hint was used.
"""

from __future__ import annotations

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.errors import CorruptionError, HoldfastError, NotFoundError
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST
from holdfast.format.documents import SMALL_BYTES_MAX, Latest, latest_bytes, parse_latest
from holdfast.ids import CheckpointId, Epoch
from holdfast.storage.base import Storage


def write_hint(
    directory: PipelineDirectory,
    storage: Storage,
    state: CatalogState,
    checkpoint: CheckpointId,
    epoch: Epoch,
) -> None:
    """Leave the hint; a failure is ignored."""
    latest = Latest(
        format=FORMAT_VERSION,
        sha256=NO_DIGEST,
        sequence=state.head,
        record_sha256=state.head_sha256,
        checkpoint=checkpoint,
        epoch=epoch,
    )
    try:
        storage.put(directory.at(paths.LATEST), latest_bytes(latest), durable=False)
    except HoldfastError:
        return


def read_hint(directory: PipelineDirectory) -> Latest | None:
    """The hint, or None where it is missing or damaged."""
    try:
        data = directory.get(paths.LATEST, bytes_max=SMALL_BYTES_MAX)
        return parse_latest(data, directory.at(paths.LATEST))
    except (NotFoundError, CorruptionError):
        return None
