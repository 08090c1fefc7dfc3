"""Carrying out a merge: off the critical path, cancellable, visible only when whole.

Invariants:
- A merge reads immutable runs and writes one new run. Whoever reads the old runs is not disturbed.
- The new run is used once it is in a run list, next to or instead of what it replaces: `replace`.
- A cancelled or failed merge leaves nothing: neither in the store nor in the list.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInputError
from holdfast.state.merge_iterator import Combine, combined
from holdfast.state.partition import live_runs, segments
from holdfast.state.run_writer import RunOptions, RunWriter
from holdfast.state.trace import views_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.state.compaction_plan import MergePlan
    from holdfast.state.run_info import RunInfo, RunTarget
    from holdfast.state.run_reader import RunSource
    from holdfast.state.schema import TraceSchema
    from holdfast.storage.base import Storage


def run_merge(
    plan: MergePlan,
    storage: Storage,
    source: RunSource,
    schema: TraceSchema,
    target: RunTarget,
    *,
    time_bound_us: int | None = None,
    options: RunOptions | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RunInfo | None:
    """Merge as planned; None when it was stopped. `target` names the file and the partition."""
    views = views_of(segments(plan.runs, plan.vnodes), source, schema, keep=False)
    how = Combine(bottom=plan.bottom, time_bound_us=time_bound_us)
    with RunWriter(
        storage,
        schema,
        target,
        plan.vnodes,
        epochs=(plan.epoch_low, plan.epoch_high),
        generation=plan.generation,
        snapshot=plan.bottom,
        options=options,
    ) as writer:
        for rows in combined(views, schema, how, stopped):
            writer.write(rows)
        if stopped():
            writer.abort()
            return None
        return writer.close()


def replace(runs: Sequence[RunInfo], merged: RunInfo) -> list[RunInfo]:
    """The run list after a merge, whatever was added meanwhile; oldest first."""
    if any(run.path == merged.path for run in runs):
        raise InvalidInputError("the run is listed already", kind="run_listed", path=merged.path)
    return live_runs([*runs, merged])


class BackgroundMerge:
    """One merge in a thread of its own."""

    def __init__(self, work: Callable[[Callable[[], bool]], RunInfo | None]) -> None:
        """Start; `work` gets a function that says whether it should stop."""
        self._stop = threading.Event()
        self._result: RunInfo | None = None
        self._error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run, name="holdfast-merge", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._work(self._stop.is_set)
        except BaseException as error:  # noqa: BLE001  # raised again in `result`, to who asks
            self._error = error

    @property
    def done(self) -> bool:
        """Whether it has ended in any way."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Ask it to stop; it leaves nothing behind."""
        self._stop.set()

    def result(self) -> RunInfo | None:
        """Wait; the merged run, or None if it was cancelled. Its error is raised here."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result
