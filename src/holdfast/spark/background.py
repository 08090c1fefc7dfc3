"""Spark jobs off the epoch's path: pieces of work that the driver plans and tasks carry out.

A job has few tasks, each with some pieces, so that epochs keep their cores. Only public calls of
Spark are used: it is the same on a local session, on a cluster and over Spark Connect.

Invariants:
- A piece may be worked on more than once, at the same time, too: tasks are tried again, and Spark
  may run a second attempt. So what a piece writes has names that no other attempt uses. Exactly one
  answer for each piece comes back, that of an attempt that Spark accepted.
- A job that fails or is cancelled gives no answers; what its tasks wrote is nobody's.
- What a piece carries crosses to the executors with the job, and goes when the job is over.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from holdfast.ids import IdSource
from holdfast.spark.classic import is_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
_ANSWERS = "task int, position int, answer binary"
_WAIT_SECONDS = 0.5
_CORES_UNKNOWN = 4


def spread(
    pieces: Sequence[_T], weight: Callable[[_T], int], tasks: int
) -> list[list[tuple[int, _T]]]:
    """Pieces, with their places in the list, for so many tasks of about equal weight.

    The heaviest pieces come first, each to the task with the least so far.

    Example:
        >>> spread([1, 5, 2, 2], lambda piece: piece, 2)
        [[(1, 5)], [(2, 2), (3, 2), (0, 1)]]
    """
    groups: list[list[tuple[int, _T]]] = [[] for _ in range(max(1, min(tasks, len(pieces))))]
    loads = [(0, number) for number in range(len(groups))]
    for place, piece in sorted(enumerate(pieces), key=lambda item: -weight(item[1])):
        load, number = heapq.heappop(loads)
        groups[number].append((place, piece))
        heapq.heappush(loads, (load + weight(piece), number))
    return groups


def cores_of(spark: SparkSession) -> int:
    """How many tasks run at a time; a guess where Spark does not tell, as over Spark Connect."""
    return int(spark.sparkContext.defaultParallelism) if is_classic(spark) else _CORES_UNKNOWN


@dataclass(frozen=True)
class _Body:
    """What the tasks run. Crosses to executors inside the plan."""

    function: Callable[[bytes], bytes]
    groups: list[list[tuple[int, bytes]]]

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for position, piece in self.groups[task]:
                    answer = self.function(piece)
                    yield pa.RecordBatch.from_arrays(
                        [
                            pa.array([task], pa.int32()),
                            pa.array([position], pa.int32()),
                            pa.array([answer], pa.binary()),
                        ],
                        names=["task", "position", "answer"],
                    )


class BackgroundJob:
    """One Spark job in a thread of its own.

    Args:
        spark: the session; epochs may run on it meanwhile.
        function: works on a piece, in a task; must be importable there.
        groups: the pieces of each task, as `spread` gives them.
        description: what people see of it in Spark's page.
        ids: where the name comes from by which the job is cancelled.
    """

    def __init__(
        self,
        spark: SparkSession,
        function: Callable[[bytes], bytes],
        groups: Sequence[Sequence[tuple[int, bytes]]],
        *,
        description: str,
        ids: IdSource,
    ) -> None:
        """Begin."""
        self._spark, self._description = spark, description
        self._body = _Body(function, [[*group] for group in groups])
        self._tag = f"holdfast-{ids.token()}"
        self._cancelled = threading.Event()
        self._answers: list[bytes] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-background", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if not self._cancelled.is_set():
                self._answers = self._collect()
        except BaseException as error:  # noqa: BLE001  # raised again in `result`, to who asks
            self._error = error

    def _collect(self) -> list[bytes]:
        spark, tasks = self._spark, len(self._body.groups)
        if is_classic(spark):
            spark.sparkContext.setJobDescription(self._description)
        spark.addTag(self._tag)
        try:
            numbers = spark.range(0, tasks, 1, tasks)
            rows = numbers.mapInArrow(self._body, _ANSWERS).collect()
        finally:
            spark.removeTag(self._tag)
        return [bytes(row["answer"]) for row in sorted(rows, key=lambda row: int(row["position"]))]

    @property
    def done(self) -> bool:
        """Whether it has ended in any way."""
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Ask Spark to stop it; `result` waits until it has."""
        self._cancelled.set()
        self._interrupt()

    def _interrupt(self) -> None:
        with suppress(Exception):  # a session that is gone has no jobs left
            self._spark.interruptTag(self._tag)

    def result(self) -> list[bytes] | None:
        """Wait; the answers in the order of the pieces, None if it was cancelled.

        Raises:
            Exception: the job failed; Spark's error as it came.
        """
        while not self.done:
            self._thread.join(_WAIT_SECONDS)
            if self._cancelled.is_set():  # it may have begun after it was asked to stop
                self._interrupt()
        if self._cancelled.is_set():
            return None
        if self._error is not None:
            raise self._error
        return self._answers
