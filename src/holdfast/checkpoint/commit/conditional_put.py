"""Put-if-absent with the truth about what happened.

Invariants:
- Returns only when the object exists with exactly these bytes and is durable.
- "Exists already" counts as success only when the bytes are ours: documents carry a writer id, so
  equal bytes mean that an earlier try of this writer succeeded and its reply was lost.
- A lost reply is resolved by reading back. What cannot be resolved is `CommitUnknownError`,
  never a guess. A failed fsync cannot be resolved by reading, and is not.
"""

from __future__ import annotations

from typing import Literal

from holdfast.clock import Clock
from holdfast.errors import (
    AlreadyExistsError,
    CommitUnknownError,
    CorruptionError,
    HoldfastError,
    StorageError,
)
from holdfast.storage.base import Storage

_TRIES = 4
_PAUSE_MS = 50


def publish(storage: Storage, path: str, data: bytes, clock: Clock) -> None:
    """Make the object exist with these bytes, or say which of the other outcomes it was."""
    unknown: HoldfastError | None = None
    for attempt in range(_TRIES):
        if attempt:
            clock.sleep_ms(_PAUSE_MS << attempt)
        try:
            storage.put_new(path, data)
        except AlreadyExistsError as error:
            unknown = error
        except StorageError as error:
            if error.took_effect is False and unknown is None:
                raise
            unknown = error
            if not error.retryable:
                break
        else:
            return
        verdict = _read_back(storage, path, data)
        if verdict == "ours":
            return
        if verdict == "other":
            raise AlreadyExistsError("object exists already", path=path) from unknown
        # Not there, or nobody knows: the same bytes may safely be sent again.
    raise CommitUnknownError(
        "nobody can say whether the write happened",
        path=path,
        reason=unknown.what if unknown else None,
        remedy="open the store again: recovery reads what is there and resumes from it",
    ) from unknown


def _read_back(storage: Storage, path: str, data: bytes) -> Literal["ours", "other", "unknown"]:
    """Whose bytes are there."""
    try:
        content = storage.get(path, bytes_max=len(data))
    except CorruptionError:
        return "other"  # larger than ours
    except HoldfastError:
        return "unknown"
    return "ours" if content == data else "other"
