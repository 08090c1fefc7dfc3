"""Epochs that a sink cannot publish: set aside with all their rows, and published later.

Invariants:
- The rows and their token are durable in quarantine before the outcome says so: nothing is lost,
  and `ls`, `show` and the outcome's reason tell that it was not published.
- What was set aside is published at most once: not after a rebuild, which brought the same rows,
  and not when the history that it belonged to was left.
- Files are copied a part at a time.

Layout: `<store>/.quarantine/<pipeline>/<sink>/<epoch>/`: the staged files and `token.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import msgspec

from holdfast.checkpoint import PendingToken, Store
from holdfast.checkpoint.artifact import copy_object
from holdfast.connectors.base import SinkWriter, Token, parse_token
from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
)
from holdfast.failpoints import failpoint
from holdfast.format.documents import Replay
from holdfast.ids import CheckpointId, Epoch
from holdfast.storage import Storage
from holdfast.storage.open import StorageLocation, storage_of

_TOKEN = "token.json"  # noqa: S105 - a file name


class _SetAside(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`token.json`: what was to be published."""

    checkpoint: str
    epoch: int
    sink: str
    token: str
    replay: Replay


class Quarantine:
    """The quarantine of one pipeline."""

    def __init__(
        self, store: Store, place: StorageLocation, writers: Mapping[str, SinkWriter]
    ) -> None:
        """Nothing is read yet."""
        self._store, self._storage, self._writers = store, storage_of(place), writers
        self._root = f".quarantine/{store.reader.directory.pipeline}"

    def set_aside(self, sinks: Collection[str], notes: list[str]) -> None:
        """Move what these sinks failed to publish; all that waits, of sinks that are gone."""
        pending = self._store.pending()
        promised = {promise.name for summary in self._store.list() for promise in summary.sinks}
        for sink in sinks:  # one that is gone and set aside already is asked for again by a retry
            if sink not in {*self._writers, *promised} and not self.entries(sink):
                raise self._unknown(sink)
        for token in pending:
            gone = token.sink not in self._writers
            if token.sink in sinks and (gone or token.status == "failed"):
                self._move(token)
                notes.append(f"sink {token.sink}: epoch {token.epoch} was set aside, unpublished")

    def _move(self, token: PendingToken) -> None:
        writer = self._writers.get(token.sink)
        if writer is not None and writer.needs_every_epoch:
            raise RefusedError(
                "an upsert output cannot do without an epoch",
                kind="cannot_set_aside",
                sink=token.sink,
                epoch=token.epoch,
                remedy=f'rebuild it: outputs={{"{token.sink}": "adopt"}}',
            )
        staged = parse_token(token)
        source = storage_of(writer.staging("")[0]) if writer is not None else self._storage
        home = f"{self._root}/{token.sink}/{int(token.epoch)}"
        for file in staged.files:
            target = f"{home}/{file.rsplit('/', 1)[1]}"
            if not self._copied(source, file, target):
                raise NotFoundError(
                    "the rows that are to be set aside are not in the store",
                    kind="staging_lost",
                    sink=token.sink,
                    epoch=token.epoch,
                    path=file,
                    remedy="declare the sink again with its old path, and set it aside then",
                )
        entry = _SetAside(token.checkpoint, int(token.epoch), token.sink, token.token, token.replay)
        self._storage.put(f"{home}/{_TOKEN}", msgspec.json.encode(entry))
        failpoint("output.after_quarantine")
        reason = f"set aside in {home}; publish it with redrive (--redrive {token.sink})"
        self._store.record_outcome(token.checkpoint, token.sink, "aborted", reason=reason)

    def _copied(self, source: Storage, file: str, target: str) -> bool:
        if not source.exists(file):
            return self._storage.exists(target)
        copy_object(source, file, self._storage, target)
        return True

    def entries(self, sink: str) -> list[tuple[str, _SetAside]]:
        """What was set aside for a sink, oldest first."""
        found = []
        for entry in self._storage.list(f"{self._root}/{sink}"):
            if entry.path.endswith(f"/{_TOKEN}"):
                try:
                    value = msgspec.json.decode(self._storage.get(entry.path), type=_SetAside)
                except msgspec.MsgspecError as error:
                    raise CorruptionError(
                        "an epoch in quarantine cannot be read",
                        kind="bad_token",
                        path=entry.path,
                        reason=str(error)[:200],
                        remedy="bring the file back, or remove its directory to give the rows up",
                    ) from error
                found.append((entry.path.rsplit("/", 1)[0], value))
        return sorted(found, key=lambda pair: pair[1].epoch)

    def redrive(self, sinks: Collection[str], since: Mapping[str, int], notes: list[str]) -> None:
        """Publish what was set aside. since: by sink, the epoch of its last rebuild."""
        for sink in sinks:
            writer = self._writers.get(sink)
            if writer is None:
                raise self._unknown(sink)
            for home, entry in self.entries(sink):
                why = self._outdated(entry, since.get(sink, -1))
                if why is None:
                    self._publish(writer, home, entry)
                notes.append(f"sink {sink}: epoch {entry.epoch} {why or 'was published late'}")
                self._remove(home)

    def _unknown(self, sink: str) -> InvalidInputError:
        return InvalidInputError(
            "no sink of that name",
            kind="unknown_sink",
            sink=sink,
            known=",".join(self._writers) or "none",
            remedy="give the name that pipe.sink got",
        )

    def _outdated(self, entry: _SetAside, since: int) -> str | None:
        if entry.epoch < since:
            return "is not published: the rebuilt output has its rows"
        current = self._store.current
        left = {s.checkpoint for s in self._store.list() if s.abandoned}
        if current is None or entry.epoch > current.epoch or entry.checkpoint in left:
            return "is not published: the pipeline has gone back behind it"
        return None

    def _publish(self, writer: SinkWriter, home: str, entry: _SetAside) -> None:
        token = PendingToken(
            CheckpointId(entry.checkpoint),
            Epoch(entry.epoch),
            entry.sink,
            entry.token,
            entry.replay,
            "failed",
        )
        staged = parse_token(token)
        place, directory = writer.staging(entry.checkpoint)
        back, files = storage_of(place), []
        for file in staged.files:
            name = file.rsplit("/", 1)[1]
            if self._storage.exists(f"{home}/{name}"):
                copy_object(self._storage, f"{home}/{name}", back, f"{directory}/{name}")
            files.append(f"{directory}/{name}")
        text = msgspec.json.encode(Token(directory, files, staged.rows, staged.bytes)).decode()
        try:
            writer.commit(replace(token, token=text))
        except HoldfastError as error:
            error.facts.setdefault("sink", entry.sink)
            error.facts.setdefault("epoch", entry.epoch)
            raise
        failpoint("output.after_redrive")
        if any(s.checkpoint == entry.checkpoint for s in self._store.list()):
            self._store.record_outcome(entry.checkpoint, entry.sink, "committed")

    def _remove(self, home: str) -> None:
        """The token first: rows without one are never published again."""
        self._storage.delete(f"{home}/{_TOKEN}")
        self._storage.delete_many([entry.path for entry in self._storage.list(home)])
