"""The outputs of a run: looked at, claimed, retracted, rebuilt, and recorded when they grow.

Invariants:
- `look` only reads; `act` begins when every output has been decided on.
- Every step of `act` can be repeated: a crash anywhere is continued by the next start.
- An epoch's rows are published, then the owner record says so, then the outcome does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from holdfast.checkpoint import Draft, PendingToken, Store, StoreReader
from holdfast.connectors.base import (
    OutputState,
    OutputWriter,
    SinkWriter,
    StagedFile,
    parse_token,
    token_text,
)
from holdfast.errors import InvalidInputError
from holdfast.failpoints import failpoint
from holdfast.format.documents import Summary
from holdfast.format.manifest import Manifest
from holdfast.format.owner import NOTHING, Owner, new_owner
from holdfast.operators.declaration import SinkNode
from holdfast.runtime.outputs import (
    OWNED,
    Decision,
    History,
    Wish,
    decide,
    published_text,
)
from holdfast.storage.open import storage_of

_WISHES = ("adopt", "keep", "empty")


class _Handler:
    """Publishes one sink's tokens and keeps its owner record."""

    def __init__(self, name: str, writer: SinkWriter, outputs: Outputs) -> None:
        self._name, self._writer, self._outputs = name, writer, outputs

    def commit(self, token: PendingToken) -> None:
        """Publish rows, then say so in the owner record."""
        if not isinstance(self._writer, OutputWriter):
            self._writer.commit(token)
            return
        owner = self._outputs.owners.get(self._name)
        if owner is not None and owner.building:
            self._writer.replace(token)
        else:
            self._writer.commit(token)
        failpoint("output.after_rows")
        if owner is not None and (owner.building or owner.epoch < token.epoch):
            self._outputs.record(
                self._name, epoch=int(token.epoch), checkpoint=token.checkpoint, building=False
            )
            failpoint("output.after_record")


class Outputs:
    """The outputs of one pipeline while it runs."""

    def __init__(self, writers: Mapping[str, SinkWriter], wishes: Mapping[str, Wish]) -> None:
        """Refuse wishes for sinks that are not there."""
        for name, wish in wishes.items():
            if name not in writers or wish not in _WISHES:
                raise InvalidInputError(
                    "no such sink, or no such wish for its output",
                    kind="unknown_wish",
                    sink=name,
                    wish=wish,
                    known=",".join(writers) or "none",
                    remedy='say outputs={"sink": "adopt"}, "keep" or "empty"',
                )
        self.writers = writers
        self.handlers = {name: _Handler(name, w, self) for name, w in writers.items()}
        self.owners: dict[str, Owner] = {}
        self.decisions: dict[str, Decision] = {}
        self._wishes = wishes
        self._history = History("", "")

    @property
    def properties(self) -> dict[str, str]:
        """What a manifest says from now on: a sink's output without a record is not an old one."""
        return {OWNED: published_text(self.owners)}

    def look(
        self,
        history: History,
        reader: StoreReader,
        live: Sequence[Summary],
        new: frozenset[str],
        pending: Sequence[PendingToken] = (),
    ) -> None:
        """Decide about every output; reads only."""
        self._history = history
        self.decisions, self.owners = {}, {}
        for name, writer in self.writers.items():
            if not isinstance(writer, OutputWriter):
                continue
            found = writer.inspect(history.epoch)
            if found.owner is None and not found.empty and history.epoch is not None:
                found = _with_fit(found, name, writer, history, reader, live)
            wish = self._wishes.get(name)
            decision = decide(name, found, history, new=name in new, wish=wish)
            waiting = [token for token in pending if token.sink == name]
            simple = (
                decision.action in ("continue", "retract", "claim", "finish") and not found.shared
            )
            if simple and any(_lost(writer, token) for token in waiting):
                decision = Decision("rebuild", "rows that wait to be published are gone")
            self.decisions[name] = decision
            self.owners[name] = found.owner or self._fresh(name)

    def _fresh(self, name: str) -> Owner:
        return new_owner(self._history.lineage, self._history.pipeline, name)

    @property
    def since(self) -> dict[str, int]:
        """By sink, the epoch of its last rebuild."""
        return {name: owner.since for name, owner in self.owners.items()}

    def asked(self, action: str) -> frozenset[str]:
        """The sinks for which one thing was decided."""
        return frozenset(n for n, decision in self.decisions.items() if decision.action == action)

    def soften(self, name: str) -> None:
        """Nothing proves that an output ever had rows, and it cannot be rebuilt: claim it."""
        self.decisions[name] = Decision("claim", "begins empty: it cannot be rebuilt", soft=True)

    def lines(self) -> list[str]:
        """One line for each output that is not simply continued."""
        told = ("rebuild", "retract", "finish", "empty")
        return [
            f"output of {name}: {decision.action}, {decision.why}"
            for name, decision in self.decisions.items()
            if decision.action in told or decision.soft
        ]

    def act(self, store: Store) -> None:
        """Do what was decided; then remove what nobody will publish."""
        for name, decision in self.decisions.items():
            writer = self.writers[name]
            if decision.action in ("continue", "finish") or not isinstance(writer, OutputWriter):
                continue
            if decision.action == "rebuild":
                self._begin_rebuild(name, store)
                continue
            if decision.action == "retract":
                writer.retract(self._history.epoch)
                failpoint("output.after_retract")
            elif decision.action == "empty":
                writer.clear()
            since = NOTHING if decision.action == "empty" else self.owners[name].since
            self.owners[name] = msgspec.structs.replace(self._fresh(name), since=since)
            epoch = NOTHING if self._history.epoch is None else self._history.epoch
            self.record(name, epoch=epoch, checkpoint=self._history.checkpoint)
        pending = store.pending()
        for name, writer in self.writers.items():
            writer.remove_stale_staging(
                [token.checkpoint for token in pending if token.sink == name]
            )

    def _begin_rebuild(self, name: str, store: Store) -> None:
        """From the mark on, every start knows that the output is not complete."""
        epoch = NOTHING if self._history.epoch is None else self._history.epoch
        self.owners[name] = self._fresh(name)
        self.record(name, epoch=epoch, checkpoint=self._history.checkpoint, building=True)
        failpoint("output.after_mark")
        for token in store.pending():
            if token.sink == name:
                reason = "superseded: the output is rebuilt with these rows in it"
                store.record_outcome(token.checkpoint, token.sink, "aborted", reason=reason)

    def finish(self, manifest: Manifest | None) -> None:
        """A rebuild without a single row publishes nothing: the output is empty and complete."""
        epoch, checkpoint = NOTHING, ""
        if manifest is not None:
            epoch, checkpoint = int(manifest.epoch), manifest.checkpoint
        for name, owner in self.owners.items():
            writer = self.writers[name]
            if owner.building and isinstance(writer, OutputWriter):
                writer.clear()
                failpoint("output.after_clear")
                self.record(name, epoch=epoch, checkpoint=checkpoint, building=False)

    def compaction_due(self, store: Store) -> bool:
        """Whether an output asks to be compacted."""
        compacting = [
            w for w in self.writers.values() if isinstance(w, OutputWriter) and w.compacts
        ]
        limit = _compactable(store) if compacting else NOTHING
        return any(writer.compaction_due(limit) for writer in compacting)

    def compact(self, store: Store, sink: str | None = None) -> bool:
        """Compact what is due, or one output on request; no task may stage rows meanwhile."""
        compacted, limit = False, _compactable(store)
        for name, writer in self.writers.items():
            if not isinstance(writer, OutputWriter) or name != (sink or name):
                continue
            if sink is not None or writer.compaction_due(limit):
                owner = writer.compact(limit, requested=sink is not None)
                if owner is not None:
                    self.owners[name], compacted = owner, True
        return compacted

    def record(self, name: str, *, epoch: int, checkpoint: str, building: bool = False) -> None:
        """Replace an owner record, durably."""
        writer, owner = self.writers[name], self.owners[name]
        if not isinstance(writer, OutputWriter):
            return
        parts, version = writer.extent()
        since = epoch if owner.building and not building else owner.since
        self.owners[name] = writer.claim(
            msgspec.structs.replace(
                owner,
                epoch=epoch,
                checkpoint=checkpoint,
                building=building,
                parts=parts,
                version=version,
                since=since,
                folds=writer.folds(),
            )
        )


def stage_tokens(
    draft: Draft,
    sinks: Sequence[SinkNode],
    writers: Mapping[str, SinkWriter],
    staged: Mapping[str, Sequence[StagedFile]],
    checkpoint: str,
) -> None:
    """Put a token into the draft for each sink that has rows; they become durable with it."""
    for sink in sinks:
        files = staged.get(sink.name)
        if files:
            location, directory = writers[sink.name].staging(checkpoint)
            draft.stage_sink(
                sink.name,
                token_text(directory, files),
                replay=sink.connector.replay,
                storage=storage_of(location),
                files=[file.path for file in files],
            )


def _lost(writer: OutputWriter, token: PendingToken) -> bool:
    """Whether staged rows are neither where they were staged nor published: a moved store."""
    storage = storage_of(writer.staging("")[0])
    there = all(storage.exists(file) for file in parse_token(token).files)
    return not there and not writer.holds(token)


def _compactable(store: Store) -> int:
    """The newest epoch that no retained checkpoint can go back behind."""
    return min((int(summary.epoch) for summary in store.list()), default=NOTHING)


def _with_fit(
    found: OutputState,
    name: str,
    writer: OutputWriter,
    history: History,
    reader: StoreReader,
    live: Sequence[Summary],
) -> OutputState:
    """Compare an output without a record with what the store remembers of it."""
    chain = set((history.chain or {}).values())
    outcomes = reader.outcomes()
    fits: bool | None = None
    for summary in live:
        names = [sink.name for sink in summary.sinks]
        if summary.checkpoint not in chain or name not in names:
            continue
        if outcomes.status(summary.checkpoint, name) != "committed":
            continue
        entry = next(e for e in reader.manifest(summary).sinks if e.name == name)
        token = PendingToken(
            summary.checkpoint, summary.epoch, name, entry.token, entry.replay, "committed"
        )
        fits = writer.holds(token) and fits is not False
    return replace(found, fits=fits)
