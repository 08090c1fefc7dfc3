"""The owner record of an output: which store writes there, and how far it got.

Invariants:
- One record for each output (for a journal: for each sink that appends to it).
- It is replaced after an epoch is published and before its outcome is recorded: an epoch with a
  committed outcome is never newer than the record.
- While `building` is set, what lies in the output is not complete and is built from scratch.

Spec: spec/format-v2.md, section 9.
"""

from __future__ import annotations

from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST, Document, decode, encode
from holdfast.format.documents import SMALL_BYTES_MAX

OWNER = "_holdfast.json"
NOTHING = -1


class Owner(Document, frozen=True, kw_only=True):
    """`_holdfast.json`: who writes here.

    epoch, checkpoint: the newest published one; -1 and "" before the first. parts: how many epoch
    directories (changelog) or files (upsert) belong to it. version: of an upsert output, the epoch
    of the version that it shows. since: the epoch of the last rebuild. folds: of a changelog, first
    and last epoch of every directory that holds several.
    """

    lineage: str
    pipeline: str
    sink: str
    epoch: int = NOTHING
    checkpoint: str = ""
    parts: int = 0
    version: int = NOTHING
    building: bool = False
    since: int = NOTHING
    folds: list[tuple[int, int]] = []


def new_owner(lineage: str, pipeline: str, sink: str) -> Owner:
    """The record of an output that holds nothing yet."""
    return Owner(
        format=FORMAT_VERSION, sha256=NO_DIGEST, lineage=lineage, pipeline=pipeline, sink=sink
    )


def owner_bytes(owner: Owner) -> bytes:
    """Canonical bytes of an owner record."""
    return encode(owner, bytes_max=SMALL_BYTES_MAX)


def parse_owner(data: bytes, path: str) -> Owner:
    """The owner record in these bytes."""
    return decode(data, Owner, path=path, bytes_max=SMALL_BYTES_MAX)
