"""Running one thing completely at every moment of another.

`at_every_moment` repeats a piece of work, each time in a fresh world, and runs something else
before its n-th storage operation; the first repetition in which nothing ran ends it. (After an
operation is the same moment as before the next one: nothing stored changes in between.)
"""

from __future__ import annotations

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
