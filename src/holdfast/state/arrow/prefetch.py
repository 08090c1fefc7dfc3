"""Prefetch: work ahead of its consumer, by a few threads, in order and with a bound.

Invariants:
- Results come in the order of the tasks; a failure is raised where its result would have come.
- At most `ahead` results wait: memory and reading follow the consumer, not the list of tasks.
- After `close` no thread of it runs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
R = TypeVar("R")


class Prefetch(Generic[T, R]):
    """Begins at once; iterate for the results."""

    def __init__(
        self, work: Callable[[T], R], tasks: Sequence[T], *, threads: int, ahead: int
    ) -> None:
        """Start the threads; `work` should spend its time where the interpreter lock is free."""
        self._work, self._tasks, self._ahead = work, tasks, max(1, ahead)
        self._changed = threading.Condition()
        self._done: dict[int, R | BaseException] = {}
        self._begun = self._taken = 0
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name="holdfast-scan", daemon=True)
            for _ in range(min(threads, len(tasks)))
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._may_go_on)
                if self._stopped or self._begun >= len(self._tasks):
                    return
                number = self._begun
                self._begun += 1
            result: R | BaseException
            try:
                result = self._work(self._tasks[number])
            except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
                result = error
            with self._changed:
                self._done[number] = result
                self._changed.notify_all()

    def _may_go_on(self) -> bool:
        room = self._begun < self._taken + self._ahead
        return self._stopped or self._begun >= len(self._tasks) or room

    def __iter__(self) -> Iterator[R]:
        """The results; leaving the loop early stops the work."""
        try:
            for number in range(len(self._tasks)):
                with self._changed:
                    while number not in self._done and not self._stopped:
                        self._changed.wait()
                    if self._stopped:
                        return
                    result = self._done.pop(number)
                    self._taken += 1
                    self._changed.notify_all()
                if isinstance(result, BaseException):
                    raise result
                yield result
        finally:
            self.stop()

    def stop(self) -> None:
        """Begin nothing more; does not wait."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and wait for what is under way."""
        self.stop()
        for thread in self._threads:
            thread.join()
