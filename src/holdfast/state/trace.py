"""What both kinds of partition share: open runs, views, and writing a run of updates.

Invariants:
- A partition reads exactly the run slices of its vnodes; rows of others are refused, not ignored.
- `apply` writes one new run and changes nothing else: until a checkpoint lists the run, it is
  garbage. Reading continues from the runs that were given at opening.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.errors import InvalidInputError
from holdfast.state.live_counts import change_of
from holdfast.state.partition import partition_range, run_slices
from holdfast.state.run_view import RunView
from holdfast.state.run_writer import RunWriterOptions, write_run
from holdfast.state.schema import TraceKind
from holdfast.state.time_index import due_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from holdfast.state.live_counts import Asked, Change
    from holdfast.state.partition import RunSlice
    from holdfast.state.run_info import RunInfo, RunTarget, VnodeRange
    from holdfast.state.run_reader import RunFile, RunSource
    from holdfast.state.schema import TraceSchema
    from holdfast.storage.base import Storage


class TracePartition:
    """One partition of a trace, open for lookups."""

    kind: ClassVar[TraceKind]

    def __init__(
        self,
        schema: TraceSchema,
        views: list[RunView],
        partition: int,
        partitions: int,
        time_bound_us: int | None,
        *,
        fresh: bool,
        vnodes: VnodeRange | None = None,
    ) -> None:
        """Use `open`."""
        self._fresh = fresh
        self.schema = schema
        self.partition, self.partitions = partition, partitions
        self.vnodes = vnodes or partition_range(partition, partitions)
        self.time_bound_us = time_bound_us
        self._views = views
        self._written: Any = None
        self._asked: Asked | None = None

    @classmethod
    def open(
        cls,
        runs: Sequence[RunInfo],
        source: RunSource,
        schema: TraceSchema,
        *,
        partition: int = 0,
        partitions: int = 1,
        time_bound_us: int | None = None,
        vnodes: VnodeRange | None = None,
    ) -> Self:
        """Open a trace's runs for one partition of any number of them.

        Rows with an event time before `time_bound_us` are treated as absent, whether or not a
        compaction has removed them yet. `vnodes`: only these of the partition.
        """
        if schema.kind is not cls.kind:
            raise InvalidInputError(
                "the schema is of another kind of trace",
                kind="trace_kind_differs",
                expected=str(cls.kind),
                actual=str(schema.kind),
            )
        slices = run_slices(runs, vnodes or partition_range(partition, partitions))
        views = views_of(slices, source, schema)
        return cls(
            schema, views, partition, partitions, time_bound_us, fresh=not slices, vnodes=vnodes
        )

    @property
    def fresh(self) -> bool:
        """Whether there is nothing that an update could build on."""
        return self._fresh

    def extend(self, views: Sequence[RunView]) -> None:
        """Look into these newer views, too."""
        self._views = [*self._views, *views]
        self._fresh = self._fresh and not views

    def due(
        self, low_us: int | None, high_us: int, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """Live rows with an event time from `low_us` to before `high_us`; None: from the beginning.

        One batch of hash, keys and values (and the weight of a bag), in hash order. The cost
        follows what is due: each run keeps an index by time for as long as it is open. A
        caller that needs only some `columns` says so, and gets them in the order of the trace.
        """
        if self.schema.time_column is None:
            raise InvalidInputError(
                "the trace has no event time to go by",
                kind="invalid_time_column",
                remedy="give the trace a time_column",
            )
        low = max((b for b in (low_us, self.time_bound_us) if b is not None), default=None)
        marker = [] if self.kind is TraceKind.BAG else [self.schema.marker]
        names = [name for name in self.schema.stored.names if name not in marker]
        if columns is not None:
            names = [name for name in names if name in columns]
        return due_rows(self._views, self.schema, low, high_us, names)

    def apply(
        self,
        updates: pa.Table | pa.RecordBatch,
        storage: Storage,
        target: RunTarget,
        *,
        options: RunWriterOptions | None = None,
    ) -> RunInfo | None:
        """Write the updates as one new run; None when they come to nothing.

        The first run of a partition is a snapshot: there is nothing that it builds on, and
        nothing for a tombstone to delete.
        """
        if (target.partition, target.partitions) != (self.partition, self.partitions):
            raise InvalidInputError(
                "the target is another partition",
                kind="partition_differs",
                target=f"{target.partition} of {target.partitions}",
                open=f"{self.partition} of {self.partitions}",
            )
        rows = self.combine(updates)
        if rows is None:
            return None
        return write_run(
            storage, self.schema, target, rows, self.vnodes, snapshot=self._fresh, options=options
        )

    def combine(self, updates: pa.Table | pa.RecordBatch) -> pa.RecordBatch | None:
        """The updates as stored rows in hash order, for who writes them; None without any."""
        rows = self._combined(self.schema.rows_of(updates))
        if not rows.num_rows:
            return None
        self._written = rows
        hashes = rows.column(0).to_numpy()
        self._check_mine(int(hashes[0]), int(hashes[-1]))
        return rows

    def change(self, bound_us: int | None = None) -> Change:
        """How many live rows and keys `apply` adds, as seen with the time bound after the epoch."""
        bounds = (self.time_bound_us, bound_us)
        return change_of(self.schema, self._views, self._written, bounds, self._asked)

    def _combined(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def _check_mine(self, low: int, high: int) -> None:
        if not self.vnodes.hash_low <= low <= high <= self.vnodes.hash_high:
            raise InvalidInputError(
                "rows belong to another partition",
                kind="wrong_partition",
                partition=f"{self.partition} of {self.partitions}",
                hashes=f"{low:016x}..{high:016x}",
                remedy="shuffle by vnode: the top 8 bits of the hash",
            )

    def close(self) -> None:
        """Release the runs; the source decides what stays open."""
        self._views = []

    def __enter__(self) -> Self:
        """Use as a context."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def views_of(
    slices: Iterable[RunSlice], source: RunSource, schema: TraceSchema, *, keep: bool = True
) -> list[RunView]:
    """Segments as views of open runs, in the same order; each run is opened once."""
    opened: dict[str, RunFile] = {}
    views = []
    for run_slice in slices:
        run = opened.get(run_slice.run.path)
        if run is None:
            run = opened[run_slice.run.path] = source.open(run_slice.run, schema, keep=keep)
        view = RunView(run, run_slice.vnodes)
        if not view.empty:
            views.append(view)
    return views
