"""Owner records on a storage: read, claimed once, replaced afterwards."""

from __future__ import annotations

from holdfast.errors import AlreadyExistsError, ConflictError, CorruptionError, NotFoundError
from holdfast.format.canonical import seal
from holdfast.format.documents import SMALL_BYTES_MAX
from holdfast.format.owner import Owner, parse_owner
from holdfast.storage import Storage


def read_owner(storage: Storage, path: str) -> Owner | None:
    """The owner record of an output; None without one."""
    try:
        return parse_owner(storage.get(path, bytes_max=SMALL_BYTES_MAX), path)
    except NotFoundError:
        return None
    except CorruptionError as error:
        error.facts["output"] = storage.url
        error.remedy = (
            "bring the record back from a copy; or delete it, and say what becomes of the output: "
            'outputs={"sink": "adopt"} rebuilds it, "keep" takes it as it is'
        )
        raise


def put_owner(storage: Storage, path: str, owner: Owner, *, first: bool) -> Owner:
    """Write a record durably; of two that claim one output at once, one wins."""
    sealed, data = seal(owner, bytes_max=SMALL_BYTES_MAX)
    if not first:
        storage.put(path, data)
        return sealed
    try:
        storage.put_new(path, data)
    except AlreadyExistsError as error:
        raise ConflictError(
            "another pipeline claimed the output at this moment",
            kind="output_claimed",
            sink=owner.sink,
            path=storage.url,
            remedy="start again: the owner is named then",
        ) from error
    return sealed
