"""How the parameters of an epoch travel to its tasks: here, and nowhere else.

Invariants:
- A plan may be made ahead of its epoch. So the job of a stage travels next to the plan, in a local
  property that Spark sends along with every task. Spark Connect has no such properties: there the
  plan is made when its jobs are known, and carries them.
- Later jobs of the user's session carry nothing of ours: `sent_jobs` removes what it has set.
- Run lists that are too long to go to every task are cut by partition and put into a document,
  which lives as long as the job: see `run_lists`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InternalError
from holdfast.runtime.run_lists import (
    DocumentWriter,
    ListDocument,
    needs_document,
    pack,
    read_part,
    unpack,
)
from holdfast.state import RunInfo
from holdfast.storage import Storage
from holdfast.storage.open import StorageLocation, storage_of


class StageJob(msgspec.Struct, frozen=True):
    """What is different in every epoch.

    staging: by sink, the directory of its staged files. lists: where `runs` are, if not here.
    """

    checkpoint: str
    parent: str | None
    epoch: int
    runs: dict[str, list[RunInfo]] = {}
    staging: dict[str, str] = {}
    watermark_us: int | None = None
    previous_watermark_us: int | None = None
    lists: ListDocument | None = None


class _Sent(msgspec.Struct, frozen=True):
    """A job as text: its run lists are packed."""

    job: StageJob
    runs: bytes


_decoder = msgspec.json.Decoder(_Sent)


def jobs_of(
    common: StageJob,
    traces: Mapping[str, Collection[str]],
    runs: Mapping[str, list[RunInfo]],
) -> dict[str, StageJob]:
    """The job of every stage: what all have in common, and the runs of its own traces."""
    return {
        name: msgspec.structs.replace(common, runs={trace: runs.get(trace, []) for trace in own})
        for name, own in traces.items()
    }


@contextmanager
def with_documents(
    jobs: Mapping[str, StageJob],
    tasks: Mapping[str, int],
    storage: Storage,
    pipeline: str,
    token: Callable[[], str],
) -> Iterator[dict[str, StageJob]]:
    """While this lasts, the same jobs, with long run lists in a document of the store.

    Args:
        jobs: the jobs, by the name of their stage.
        tasks: how many tasks a stage has; one where nothing is said.
        storage: where the store is.
        pipeline: the directory of the pipeline there.
        token: gives a new name.
    """
    long = [n for n, job in jobs.items() if needs_document(job.runs, tasks.get(n, 1))]
    if not long:
        yield dict(jobs)
        return
    writer = DocumentWriter(jobs[long[0]].checkpoint, token())
    path = f"{pipeline}/{writer.path}"
    moved = {
        name: msgspec.structs.replace(
            jobs[name], runs={}, lists=writer.add(jobs[name].runs, tasks.get(name, 1))
        )
        for name in long
    }
    storage.put(path, writer.content, durable=False)
    try:
        yield {**jobs, **moved}
    finally:
        with suppress(HoldfastError):  # clean-up finds it by its name
            storage.delete(path)


def with_lists(job: StageJob, partition: int, place: StorageLocation, pipeline: str) -> StageJob:
    """In a task: the job with the run lists that its partition reads."""
    if job.lists is None or partition < 0:
        return job
    storage = storage_of(place)
    runs = read_part(
        job.lists, partition, lambda path, *span: storage.get_range(f"{pipeline}/{path}", *span)
    )
    return msgspec.structs.replace(job, runs=runs, lists=None)


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
            sent = _Sent(msgspec.structs.replace(job, runs={}), pack(job.runs))
            context.setLocalProperty(_property_name(stage), msgspec.json.encode(sent).decode())
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
    sent = _decoder.decode(text)
    return msgspec.structs.replace(sent.job, runs=unpack(sent.runs))
