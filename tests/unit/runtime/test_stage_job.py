"""The parameters of an epoch reach its tasks, and leave nothing behind."""

from __future__ import annotations

import pytest

from holdfast.errors import InternalError
from holdfast.runtime.stage_job import StageJob, received_job, sent_jobs

JOB = StageJob("c1", "c0", 7, staging={"out": "staging/c1"}, watermark_us=5)


class Context:
    """Both ends of Spark's local properties."""

    def __init__(self) -> None:
        self.properties: dict[str, str] = {}

    def setLocalProperty(self, name, value):  # noqa: N802 - Spark's name
        if value is None:
            self.properties.pop(name, None)
        else:
            self.properties[name] = value

    def getLocalProperty(self, name):  # noqa: N802
        return self.properties.get(name)


def test_a_task_gets_the_job_of_its_stage():
    """What was sent for a stage is what its tasks receive; another stage's is not."""
    context = Context()
    other = StageJob("c1", None, 8)
    with sent_jobs(context, {"totals": JOB, "out": other}):
        assert received_job("totals", None, context) == JOB
        assert received_job("out", None, context) == other


def test_later_jobs_of_the_session_carry_nothing():
    """After the epoch, and after one that failed, no property is left."""
    context = Context()
    with pytest.raises(ZeroDivisionError), sent_jobs(context, {"totals": JOB}):
        raise ZeroDivisionError
    assert context.properties == {}
    with sent_jobs(context, {"totals": JOB}):
        pass
    assert context.properties == {}


def test_a_plan_that_carries_its_job_needs_no_property():
    """Spark Connect has no local properties."""
    assert received_job("totals", JOB, None) is JOB


@pytest.mark.parametrize("context", [None, Context()])
def test_a_task_without_a_job_is_a_defect(context):
    """A task never guesses its epoch."""
    with pytest.raises(InternalError, match="did not get its job"):
        received_job("totals", None, context)
