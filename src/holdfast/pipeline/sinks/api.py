"""What the epoch loop asks of a sink.

Invariants:
- Tasks stage rows where nobody looks; a token names everything that was staged.
- `commit` publishes a token; publishing it again, also in another process, changes nothing.
- Nothing staged outside a durable checkpoint is ever published: `tidy` removes it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import msgspec

from holdfast.checkpoint import PendingToken
from holdfast.errors import CorruptionError
from holdfast.format.records import Replay
from holdfast.pipeline.stage import Place, Staged


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

    def tidy(self, keep: Collection[str]) -> None:
        """Remove what was staged by other checkpoints than these."""
        ...

    def retract(self, after: int | None) -> None:
        """Take back what was published after this epoch; None: nothing was committed yet."""
        ...
