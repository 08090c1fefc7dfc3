"""The writing end of a pipeline's checkpoints.

Invariants:
- One writer: after another one has opened the store, every method that changes the catalog raises
  `FencedError`. Pins and outcomes are facts of their own that any process may record.
- Retention never turns a commit into a failure: what it cannot do, it reports.
- The catalog shrinks first, files go second.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Protocol, Self

from holdfast.checkpoint.commit.catalog import write_hint
from holdfast.checkpoint.commit.protocol import commit_draft
from holdfast.checkpoint.draft import Draft
from holdfast.checkpoint.gc.collector import Collector
from holdfast.checkpoint.gc.reachability import SweepReport
from holdfast.checkpoint.outcomes import record_outcome
from holdfast.checkpoint.pins import pin, unpin
from holdfast.checkpoint.reader import Outcomes, StoreReader
from holdfast.checkpoint.recovery.open import Opened, StoreEnvironment, store_environment, take_over
from holdfast.checkpoint.recovery.plan import PendingToken, RecoveryOptions, RecoveryPlan
from holdfast.checkpoint.reference import Ref
from holdfast.checkpoint.schedule import Schedule
from holdfast.clock import Clock
from holdfast.display import html_table, short, shown, shown_html
from holdfast.errors import FencedError, HoldfastError, InvalidInputError, StorageError
from holdfast.failpoints import failpoint
from holdfast.format import paths
from holdfast.format.documents import OutcomeStatus, Pin, Summary
from holdfast.format.manifest import Manifest
from holdfast.format.position import Position, compare
from holdfast.format.topology import Topology
from holdfast.ids import CheckpointId, Epoch, IdSource
from holdfast.settings import Settings
from holdfast.storage.base import Storage
from holdfast.storage.local.reserve import fill_reserve

_PUBLISH_TRIES = 3
_PUBLISH_PAUSE_MS = 200


class SinkHandler(Protocol):
    """What a sink offers to recovery."""

    def commit(self, token: PendingToken) -> None:
        """Publish what the token stands for; publishing it again changes nothing."""
        ...


class Store:
    """One pipeline's checkpoints, held for writing. Use `open_store`."""

    def __init__(self, environment: StoreEnvironment, opened: Opened, topology: Topology) -> None:
        """Take over what `take_over` has prepared."""
        self.reader: StoreReader = opened.reader
        self.recovery: RecoveryPlan = opened.plan
        self.topology = topology
        self._environment = environment
        self._catalog = opened.catalog
        self._lease = opened.lease
        self._lineage = opened.header.lineage
        self._outcomes = opened.evidence.outcomes
        self._current: Manifest | None = opened.plan.manifest
        self._epoch_seen = max(opened.evidence.epoch_seen, opened.catalog.state.epoch_max)
        self._drafts: dict[CheckpointId, Draft] = {}
        self.cleanup: SweepReport | None = None
        self._collector = Collector(environment, opened.reader, opened.catalog)
        if self._current is not None:
            self._collector.remember(self._current, trusted=False)

    def __repr__(self) -> str:
        return shown(self, lambda: f"<Store {self._facts()}>")

    def _facts(self) -> str:
        current = self._current
        at = "no checkpoint" if current is None else f"epoch {current.epoch}, {current.checkpoint}"
        return f"{self.reader.directory.pipeline} in {short(self.storage.url)}: {at}"

    def _repr_html_(self) -> str:
        return shown_html(self, lambda: html_table("Store", [("pipeline", self._facts())]))

    # What is held

    @property
    def settings(self) -> Settings:
        """How checkpoints are made and kept."""
        return self._environment.settings

    @property
    def storage(self) -> Storage:
        """Where everything lies."""
        return self._environment.storage

    @property
    def current(self) -> Manifest | None:
        """The checkpoint that the next one builds on; None before the first."""
        return self._current

    @property
    def epoch_next(self) -> Epoch:
        """The next epoch. Never one that was used before, on any branch."""
        return Epoch(max(self._catalog.state.epoch_max, self._epoch_seen) + 1)

    @property
    def lineage(self) -> str:
        """What this store and its replicas have in common; a fork has its own."""
        return self._lineage

    @property
    def outcomes(self) -> Outcomes:
        """What became of the tokens of live checkpoints."""
        return self._outcomes

    def list(self) -> Sequence[Summary]:
        """Live checkpoints as this writer knows them, newest first."""
        return [*reversed(self._catalog.state.live)]

    def schedule(self) -> Schedule:
        """A schedule that continues from the current checkpoint."""
        last = self._current.created_us if self._current else None
        return Schedule(self.settings, self._environment.clock, last_us=last)

    # Committing

    def reserve(self) -> CheckpointId:
        """An id for a checkpoint whose files are written before its draft begins."""
        return self._environment.ids.checkpoint_id(self._environment.clock.wall_us())

    def draft(
        self,
        *,
        epoch: int | None = None,
        label: str | None = None,
        checkpoint: CheckpointId | None = None,
    ) -> Draft:
        """Begin the next checkpoint, under a reserved id where one is given."""
        self._catalog.check_alive()
        draft = Draft(
            directory=self.reader.directory,
            storage=self.storage,
            ids=self._environment.ids,
            settings=self.settings,
            topology=self.topology,
            parent=self._current,
            checkpoint=checkpoint or self.reserve(),
            epoch=Epoch(self.epoch_next if epoch is None else epoch),
            label=label,
        )
        self._drafts[draft.checkpoint] = draft
        return draft

    def commit(self, draft: Draft) -> Summary:
        """Make a draft the newest checkpoint: atomically, or not at all."""
        if draft.checkpoint not in self._drafts or draft.finished:
            raise InvalidInputError(
                "the draft is finished or belongs to another store",
                kind="draft_finished",
                checkpoint=draft.checkpoint,
                remedy="begin a new one with Store.draft",
            )
        if draft.parent != (self._current.checkpoint if self._current else None):
            raise InvalidInputError(
                "another checkpoint was committed since the draft began",
                kind="draft_outdated",
                checkpoint=draft.checkpoint,
                remedy="begin a new one with Store.draft",
            )
        self._catalog.check_alive()
        self._collector.compact_if_due()  # before, so that it can never fail what was committed
        committed = commit_draft(
            self.reader.directory,
            self.storage,
            self._catalog,
            draft,
            self._current,
            lineage=self._lineage,
            clock=self._environment.clock,
            spark=self._environment.spark,
        )
        self._current = committed.manifest
        self._collector.remember(committed.manifest, trusted=True)
        self._drafts = {k: d for k, d in self._drafts.items() if not d.finished}
        state, summary = self._catalog.state, committed.summary
        write_hint(self.reader.directory, self.storage, state, summary.checkpoint, summary.epoch)
        failpoint("commit.after_hint")
        return committed.summary

    # Sinks

    def record_outcome(
        self, ref: Ref, sink: str, status: OutcomeStatus, *, reason: str = ""
    ) -> None:
        """Say what became of a sink's token.

        That it was published, or could not be, is a fact that any process may record. That it
        never will be is a decision, which only the one that holds the store can make.
        """
        summary = self._find(ref)
        if status == "aborted":
            self._catalog.confirm_alive()
        self._outcomes = record_outcome(
            self.reader.directory,
            self.storage,
            self._environment.clock,
            self._outcomes,
            summary=summary,
            sink=sink,
            status=status,
            writer=self._catalog.writer,
            reason=reason,
        )

    def pending(self) -> Sequence[PendingToken]:
        """Tokens of durable checkpoints that are not known to be committed, oldest first."""
        tokens = []
        for summary in self._catalog.state.live:
            if summary.abandoned or self._outcomes.fully_committed(summary):
                continue
            for sink in self._collector.manifest(summary).sinks:
                status = self._outcomes.status(summary.checkpoint, sink.name)
                if status in ("pending", "failed"):
                    tokens.append(
                        PendingToken(
                            summary.checkpoint,
                            summary.epoch,
                            sink.name,
                            sink.token,
                            sink.replay,
                            status,
                        )
                    )
        return tokens

    def publish_pending(self, handlers: Mapping[str, SinkHandler]) -> Sequence[PendingToken]:
        """Roll pending tokens forward, oldest first; returns those that have no handler here.

        A sink that fails does not keep the others from publishing; its own later tokens wait.
        """
        unhandled = []
        failures: dict[str, StorageError] = {}
        for token in self.pending():
            handler = handlers.get(token.sink)
            if handler is None:
                unhandled.append(token)
            elif token.sink not in failures:
                failure = self._publish(handler, token)
                if failure is not None:
                    failures[token.sink] = failure
        for failure in failures.values():
            raise failure
        return unhandled

    def _publish(self, handler: SinkHandler, token: PendingToken) -> StorageError | None:
        """Publish one token; what trying again can help is tried again, with growing pauses."""
        for attempt in range(_PUBLISH_TRIES):
            try:
                handler.commit(token)
            except Exception as error:  # noqa: BLE001 - code of the user; typed here
                retryable = bool(getattr(error, "retryable", False))
                if retryable and attempt + 1 < _PUBLISH_TRIES:
                    self._environment.clock.sleep_ms(_PUBLISH_PAUSE_MS * 4**attempt)
                    continue
                self.record_outcome(token.checkpoint, token.sink, "failed", reason=str(error))
                failure = StorageError(
                    "a sink could not publish",
                    kind="sink_failed",
                    sink=token.sink,
                    epoch=token.epoch,
                    reason=str(error)[:300],
                    tries=attempt + 1,
                    retryable=retryable,
                    remedy="repair the cause and run again: the rows are kept and published then; "
                    "or give set_aside (--set-aside SINK) to move this epoch to quarantine and "
                    "continue, and redrive (--redrive SINK) to publish it later",
                )
                failure.__cause__ = error
                return failure
            self.record_outcome(token.checkpoint, token.sink, "committed")
            return None
        return None

    # Retention

    def pin(self, label: str, ref: Ref = "latest", *, note: str = "") -> Pin:
        """Hold a checkpoint under a label."""
        return pin(
            self.reader, self.storage, self._environment.clock, label=label, ref=ref, note=note
        )

    def unpin(self, label: str, *, force: bool = False) -> None:
        """Release a savepoint; `force` even while a fork needs its files."""
        unpin(self.reader, self.storage, label, force=force)

    def retain(self, *, keep: Collection[CheckpointId] = ()) -> SweepReport:
        """Drop what the settings no longer keep. Failures are in the report, not raised."""
        return self._collector.retain(self._outcomes, keep=keep)

    def gc(self, *, keep: Collection[CheckpointId] = (), dry_run: bool = False) -> SweepReport:
        """Retention, and then every file that nothing refers to."""
        return self._collector.gc(self._outcomes, keep=keep, dry_run=dry_run, busy=[*self._drafts])

    def delete(self, ref: Ref) -> SweepReport:
        """Remove one checkpoint. What others share stays; what must not go is refused."""
        summary = self._find(ref)
        current = self._current.checkpoint if self._current else None
        return self._collector.delete(summary, self._outcomes, current=current)

    def clean_up(self) -> SweepReport:
        """Remove unreferenced leftovers of earlier crashes; what stays is tried next time."""
        self.cleanup = self._collector.clean_up(busy=[*self._drafts])
        return self.cleanup

    def finish_open(self) -> None:
        """After opening: a catalog that has grown long is compacted, and the reserve is filled."""
        self._collector.compact_if_due()
        fill_reserve(self.storage)

    def compact(self) -> int:
        """Fold the catalog into one record now; returns how many records went."""
        return self._catalog.compact()

    def log_floor(self) -> dict[str, Position]:
        """By source, the position behind which no live checkpoint needs the log any more.

        Empty when `truncate_log` is off, so that nothing is ever cut. A checkpoint from before a
        source was added would read it from its very start: until it is gone there is no floor.
        """
        if not self.settings.truncate_log:
            return {}
        floors: dict[str, Position] = {}
        diverged: set[str] = set()
        live = [self._collector.manifest(summary).sources for summary in self._catalog.state.live]
        names = [{source.name for source in sources} for sources in live]
        everywhere = set.intersection(*names) if names else set()
        for sources in live:
            for source in sources:
                known = floors.setdefault(source.name, source.position)
                order = compare(source.position, known)
                if order == "before":
                    floors[source.name] = source.position
                elif order in ("diverged", "unordered"):
                    diverged.add(source.name)
        return {n: floor for n, floor in floors.items() if n in everywhere and n not in diverged}

    def check_alive(self, because: HoldfastError | None = None) -> None:
        """Ask the storage whether another writer has taken over: then `FencedError` is raised.

        because: what went wrong. A writer that was overtaken may miss files that its successor has
        retired; that it was overtaken is the better explanation.
        """
        try:
            self._catalog.confirm_alive()
        except FencedError as error:
            raise error from because
        except StorageError:
            if because is None:
                raise

    def close(self) -> None:
        """Give up drafts and let others in."""
        for draft in self._drafts.values():
            if not draft.finished:
                draft.abort()
        self._drafts = {}
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            self.close()

    def _find(self, ref: Ref) -> Summary:
        summary = self._catalog.state.find(CheckpointId(str(ref)))
        return summary or self.reader.resolve(ref, catalog=self._catalog.state)


def open_store(
    root: str | PathLike[str] | Storage,
    pipeline: str,
    *,
    topology: Topology,
    settings: Settings | None = None,
    resume: Ref | None = None,
    accept_duplicates: bool = False,
    accept_loss: bool = False,
    allow_changes: bool = False,
    takeover: bool = False,
    clean_up: bool = True,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    options: dict[str, Any] | None = None,
    spark: str = "",
) -> Store:
    """Open a pipeline's checkpoints for writing, recovering from whatever happened before.

    resume: go back to this checkpoint instead of the newest intact one.
    accept_duplicates: allow it even where a sink will publish epochs a second time.
    accept_loss: continue although a sink's token is unreadable: its epoch may never be published.
    allow_changes: accept a changed topology. takeover: fence a live writer on this machine.
    clean_up: remove unreferenced leftovers of earlier crashes.
    """
    paths.pipeline_dir(pipeline)  # a bad name is refused before a root is created for it
    environment = store_environment(
        root, settings=settings, clock=clock, ids=ids, options=options, spark=spark
    )
    recovery = RecoveryOptions(
        topology=topology,
        resume=resume,
        accept_duplicates=accept_duplicates,
        accept_loss=accept_loss,
        allow_changes=allow_changes,
    )
    opened = take_over(environment, pipeline, recovery, takeover=takeover)
    store = Store(environment, opened, topology)
    try:
        if clean_up:
            store.clean_up()
        store.finish_open()
    except HoldfastError:
        store.close()
        raise
    return store
