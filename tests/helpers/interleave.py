"""Running one thing completely at every moment of another.

`at_every_moment` repeats a piece of work, each time in a fresh world, and runs something else
before its n-th storage operation; the first repetition in which nothing ran ends it. (After an
operation is the same moment as before the next one: nothing stored changes in between.)
"""

from __future__ import annotations

import threading

from holdfast.errors import HoldfastError
from holdfast.testing import HookedStorage

_MOMENTS_MAX = 10_000


class Moments:
    """Counts storage operations and runs `other` at the chosen one."""

    def __init__(self, stop, other):
        self.stop = stop
        self.other = other
        self.seen = 0
        self.ran = False
        self.where = None

    def hook(self, moment, operation, path):
        if self.ran or moment == "after":
            return
        self.seen += 1
        if self.seen == self.stop:
            self.ran = True
            self.where = (operation, path)
            self.other()

    def on(self, storage):
        return HookedStorage(storage, self.hook)


def at_every_moment(make, work, other, check):
    """`check(world, answer)` after each; an answer may be the typed error that work ended with."""
    for stop in range(1, _MOMENTS_MAX):
        world = make()
        moments = Moments(stop, lambda world=world: other(world))
        try:
            answer = work(world, moments.on)
        except HoldfastError as error:
            answer = error
        if not moments.ran:
            assert stop > 2
            check(world, answer)
            return
        try:
            check(world, answer)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"moment {stop}: {moments.where}: {error}") from error
    raise AssertionError("the work never ran through undisturbed")


class Actor:
    """Work that runs in a thread of its own, a number of storage operations at a time.

    Only one actor runs at any moment, and only while `run` waits for it: the same calls give the
    same interleaving. An actor that stands still stands before an operation.
    """

    def __init__(self, storage, work):
        self.storage = HookedStorage(storage, self._hook)
        self.answer = None
        self.done = False
        self.operations = 0
        self._left = 0
        self._work = work
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self):
        self._go.acquire()
        try:
            self.answer = self._work(self.storage)
        except HoldfastError as error:
            self.answer = error
        except BaseException as error:  # noqa: BLE001 - shown where the answer is asked for
            self.answer = AssertionError(f"{type(error).__name__}: {error}")
        self.done = True
        self._stands.release()

    def _hook(self, moment, operation, path):
        if moment == "after" or threading.current_thread() is not self._thread:
            return
        if self._left == 0:
            self._stands.release()
            self._go.acquire()
        self._left -= 1
        self.operations += 1

    def run(self, operations=-1):
        """Go on for so many operations, or to the end; whether there is anything left to do."""
        if not self.done:
            self._left = operations
            self._go.release()
            self._stands.acquire()
        return not self.done
