"""Functions that a user gives to `run`: what they raise says which one it was, and when.

Invariant: an error of Holdfast, Ctrl-C and the like pass as they are; every other exception becomes
`callback_failed`, and stays the cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.runtime.report import CheckpointReport, EpochReport


class Callbacks:
    """The functions of one run, each behind a method of its name."""

    def __init__(
        self,
        on_epoch: Callable[[EpochReport], None] | None,
        on_checkpoint: Callable[[CheckpointReport], None] | None,
        stop: Callable[[], bool],
    ) -> None:
        """None does nothing."""
        self._on_epoch, self._on_checkpoint, self._stop = on_epoch, on_checkpoint, stop
        self._epoch: int | None = None  # the last that was reported

    def on_epoch(self, report: EpochReport) -> None:
        """After each epoch."""
        self._epoch = report.epoch
        if self._on_epoch is not None:
            _called("on_epoch", report.epoch, self._on_epoch, report)

    def on_checkpoint(self, report: CheckpointReport) -> None:
        """In the commit thread, when a checkpoint is durable and published."""
        if self._on_checkpoint is not None:
            _called("on_checkpoint", report.epoch, self._on_checkpoint, report)

    def stop(self) -> bool:
        """Between epochs."""
        return bool(_called("stop", self._epoch, self._stop))


def _called(argument: str, epoch: int | None, function: Callable[..., Any], *given: object) -> Any:
    try:
        return function(*given)
    except HoldfastError:
        raise
    except Exception as error:
        raise InvalidInputError(
            "a function that run() was given failed",
            kind="callback_failed",
            argument=argument,
            epoch=epoch,
            reason=" ".join(f"{type(error).__name__}: {error}".split())[:500],
            remedy="correct the function and run again: it resumes after the last checkpoint",
        ) from error
