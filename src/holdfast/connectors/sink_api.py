"""What the epoch loop asks of a sink.

Invariants:
- Tasks stage rows where nobody looks; a token names everything that was staged.
- `commit` publishes a token; publishing it again, also in another process, changes nothing.
- Nothing staged outside a durable checkpoint is ever published: `remove_stale_staging` removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.checkpoint import PendingToken
from holdfast.errors import CorruptionError
from holdfast.format.documents import Replay
from holdfast.format.owner import Owner
from holdfast.runtime.outputs import Found
from holdfast.runtime.task import Place, Staged


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was staged by one checkpoint for one sink."""

    directory: str
    files: list[str] = []
    rows: int = 0
    bytes: int = 0


def token_text(directory: str, staged: Collection[Staged]) -> str:
    """A token as it stands in the manifest."""
    token = Token(
        directory=directory,
        files=sorted(file.path for file in staged),
        rows=sum(file.rows for file in staged),
        bytes=sum(file.size for file in staged),
    )
    return msgspec.json.encode(token).decode()


def parse_token(pending: PendingToken) -> Token:
    """The token that a manifest holds."""
    try:
        return msgspec.json.decode(pending.token, type=Token, strict=True)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            "a sink token cannot be read", kind="bad_token", sink=pending.sink,
            epoch=pending.epoch, reason=str(error)[:200],
        ) from error  # fmt: skip


def tidy_staging(storage: Any, root: str, keep: Collection[str]) -> None:
    """Remove what other checkpoints than these have staged below a directory."""
    wanted = set(keep)
    depth = root.count("/") + 1
    stale = [
        entry.path for entry in storage.list(root) if entry.path.split("/")[depth] not in wanted
    ]
    storage.delete_many(stale)


class Sink(Protocol):
    """A declaration: plain data, no connection."""

    @property
    def what(self) -> str:
        """Kind of connector, for the fingerprint."""
        ...

    @property
    def params(self) -> Mapping[str, str]:
        """What else gives it its meaning."""
        ...

    @property
    def replay(self) -> Replay:
        """What happens when an epoch that was published is run again."""
        ...

    def open(self, name: str, pipeline: str, store: Place, spark: Any) -> SinkWriter:
        """Begin to write."""
        ...


class SinkWriter(Protocol):
    """A sink while the pipeline runs."""

    def staging(self, checkpoint: str) -> tuple[Place, str]:
        """Where tasks stage rows of a checkpoint."""
        ...

    def commit(self, token: PendingToken) -> None:
        """Publish."""
        ...

    def remove_stale_staging(self, keep: Collection[str]) -> None:
        """Remove what was staged by other checkpoints than these."""
        ...


@runtime_checkable
class OutputWriter(SinkWriter, Protocol):
    """A sink whose output lies somewhere: it has an owner record, and can be looked at."""

    def look(self, after: int | None) -> Found:
        """What lies there, and whether it can go back to an epoch; reads only."""
        ...

    def holds(self, token: PendingToken) -> bool:
        """Whether a published token lies there as it was published."""
        ...

    def own(self, owner: Owner) -> Owner:
        """Replace the owner record, durably; returns it as it is stored."""
        ...

    def stand(self) -> tuple[int, int]:
        """How many parts belong to the output, and the version that it shows (-1: none)."""
        ...

    def folds(self) -> list[tuple[int, int]]:
        """First and last epoch of every directory that holds several."""
        ...

    def retract(self, after: int | None) -> None:
        """Remove what was published after this epoch; only asked for where `look` allows it."""
        ...

    def replace(self, token: PendingToken) -> None:
        """Publish a token as the only content."""
        ...

    def clear(self) -> None:
        """Remove everything that was published."""
        ...
