"""Crashes at failpoints: the process dies there, as far as the code under test can tell.

Invariants:
- `SimulatedCrash` is a BaseException: no `except Exception` and no clean-up that a real crash would
  skip can swallow it. Code that would run after a real `kill -9` must not depend on `finally`.
- A crash happens at most once per context; afterwards every failpoint lets the process pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.errors import InvalidInputError
from holdfast.failpoints import FAILPOINTS, failpoint_handler


class SimulatedCrash(BaseException):
    """The process died at a failpoint."""

    def __init__(self, point: str, nth: int) -> None:
        """Remember where."""
        super().__init__(f"crash at {point}, visit {nth}")
        self.point = point
        self.nth = nth


@dataclass
class Crash:
    """What a context has seen: every failpoint in order, and whether the crash happened."""

    point: str | None
    nth: int
    reached: list[str] = field(default_factory=list)
    happened: bool = False

    def visit(self, name: str) -> None:
        """Called at every failpoint."""
        self.reached.append(name)
        if self.happened or name != self.point:
            return
        if self.reached.count(name) == self.nth:
            self.happened = True
            raise SimulatedCrash(name, self.nth)

    def visits(self) -> list[tuple[str, int]]:
        """Every visit as (point, how many times it was reached by then): arguments of crash_at."""
        seen: dict[str, int] = {}
        found = []
        for name in self.reached:
            seen[name] = seen.get(name, 0) + 1
            found.append((name, seen[name]))
        return found


@contextmanager
def crash_at(point: str, nth: int = 1) -> Iterator[Crash]:
    """Let the process die when it reaches `point` for the n-th time.

    The `SimulatedCrash` leaves the context, so that a test says where it expects it.
    """
    if point not in FAILPOINTS:
        raise InvalidInputError(
            "no such failpoint",
            kind="unknown_point",
            point=point,
            remedy="see holdfast.failpoints.FAILPOINTS",
        )
    crash = Crash(point, nth)
    with failpoint_handler(crash.visit):
        yield crash


@contextmanager
def failpoints_reached() -> Iterator[Crash]:
    """Only record the failpoints that are reached."""
    crash = Crash(None, 0)
    with failpoint_handler(crash.visit):
        yield crash
