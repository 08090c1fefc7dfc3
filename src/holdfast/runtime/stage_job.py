"""How the parameters of an epoch travel to its tasks: here, and nowhere else.

Invariants:
- A plan may be made ahead of its epoch. So the job of a stage travels next to the plan, in a local
  property that Spark sends along with every task. Spark Connect has no such properties: there the
  plan is made when its jobs are known, and carries them.
- Later jobs of the user's session carry nothing of ours: `sent_jobs` removes what it has set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.errors import InternalError
from holdfast.state import RunInfo


class StageJob(msgspec.Struct, frozen=True):
    """What is different in every epoch. `staging`: by sink, the directory of its staged files."""

    checkpoint: str
    parent: str | None
    epoch: int
    runs: dict[str, list[RunInfo]] = {}
    staging: dict[str, str] = {}
    watermark_us: int | None = None
    previous_watermark_us: int | None = None


def _property_name(stage: str) -> str:
    return f"holdfast.job.{stage}"


@contextmanager
def sent_jobs(context: Any, jobs: Mapping[str, StageJob]) -> Iterator[None]:
    """While this lasts, every task that Spark starts gets the jobs of its stages.

    Args:
        context: the session's SparkContext.
        jobs: the jobs, by the name of their stage.
    """
    try:
        for stage, job in jobs.items():
            context.setLocalProperty(_property_name(stage), msgspec.json.encode(job).decode())
        yield
    finally:
        for stage in jobs:
            context.setLocalProperty(_property_name(stage), None)


def received_job(stage: str, carried: StageJob | None, context: Any) -> StageJob:
    """In a task: the job of its stage.

    Args:
        stage: the name of the stage.
        carried: what the plan itself carries, if it does.
        context: Spark's TaskContext; None outside of a task.

    Returns:
        The job that was sent for this epoch.

    Raises:
        InternalError: nothing was sent.
    """
    if carried is not None:
        return carried
    text = context.getLocalProperty(_property_name(stage)) if context is not None else None
    if text is None:
        raise InternalError("a task did not get its job", stage=stage)
    return msgspec.json.decode(text, type=StageJob)
