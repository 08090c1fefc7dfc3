"""Functions that `run` is given: an error of theirs names the function and the epoch."""

from __future__ import annotations

import pytest

from holdfast.api.callbacks import Callbacks
from holdfast.errors import ConflictError, InvalidInputError
from holdfast.runtime.report import CheckpointReport, CheckpointState, EpochReport


def failing(*_):
    raise KeyError("m")


def report(epoch: int) -> EpochReport:
    state = CheckpointState("id")
    return EpochReport(epoch, 1, 1, 1, 0, 1, phases_ms={}, backlog={}, checkpoint=state)


CASES = {
    "on_epoch": lambda calls: calls.on_epoch(report(7)),
    "on_checkpoint": lambda calls: calls.on_checkpoint(CheckpointReport("id", 7, 1.0, 1)),
    "stop": lambda calls: calls.stop(),
}


@pytest.mark.parametrize("argument", CASES)
def test_what_a_function_raises_is_typed_and_stays_the_cause(argument) -> None:
    """Argument, epoch and the exception itself are told."""
    given = {"on_epoch": None, "on_checkpoint": None, "stop": lambda: False, argument: failing}
    calls = Callbacks(**given)
    if argument == "stop":
        calls.on_epoch(report(7))
    with pytest.raises(InvalidInputError) as caught:
        CASES[argument](calls)
    error = caught.value
    assert (error.kind, error.facts["argument"]) == ("callback_failed", argument)
    assert error.facts["epoch"] == 7
    assert isinstance(error.__cause__, KeyError)
    assert "KeyError" in str(error)


@pytest.mark.parametrize("error", [ConflictError("x", kind="fenced"), KeyboardInterrupt()])
def test_errors_of_holdfast_and_interrupts_pass_as_they_are(error) -> None:
    """A function may stop the run with an error that says what to do."""

    def stop() -> bool:
        raise error

    with pytest.raises(type(error)) as caught:
        Callbacks(None, None, stop).stop()
    assert caught.value is error


def test_functions_that_answer_are_left_alone() -> None:
    """What they are given and what they say passes through; None asks nobody."""
    reports: list[object] = []
    calls = Callbacks(reports.append, reports.append, lambda: True)
    calls.on_epoch(report(1))
    calls.on_checkpoint(CheckpointReport("id", 1, 1.0, 1))
    assert calls.stop()
    assert [found.epoch for found in reports] == [1, 1]
    Callbacks(None, None, lambda: False).on_epoch(report(1))
