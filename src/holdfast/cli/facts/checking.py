"""`verify` and `recover --plan`: can it be trusted, and what would be chosen."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.checkpoint.recovery.open import recovery_plan
from holdfast.checkpoint.recovery.plan import RecoveryPlan
from holdfast.checkpoint.verify import VerifyReport, verify_checkpoints, verify_store
from holdfast.cli.address import Place
from holdfast.cli.values import CandidateView, Recovery, TokenView, Verification
from holdfast.console import failure_of
from holdfast.format.documents import Summary
from holdfast.settings import Settings

Progress = Callable[[int, int], None]


def verify_place(
    place: Place,
    *,
    deep: bool,
    only: Summary | None = None,
    progress: Progress | None = None,
    threads: int = 2,
) -> Verification:
    """Check a pipeline, or one of its checkpoints."""
    start = time.perf_counter()
    if only is None:
        report = verify_store(place.reader, deep=deep, progress=progress, threads=threads)
    else:
        report = VerifyReport(deep=deep)
        verify_checkpoints(place.reader, [only], report, progress=progress, threads=threads)
    seconds = time.perf_counter() - start
    damaged = [
        checkpoint
        for checkpoint, found in report.by_checkpoint.items()
        if any(finding.severity == "error" for finding in found)
    ]
    return Verification(
        root=place.root,
        pipeline=place.pipeline,
        ok=report.ok,
        deep=deep,
        checkpoints=report.checkpoints,
        damaged=[*damaged],
        files=report.files,
        bytes=report.bytes,
        seconds=round(seconds, 6),
        bytes_per_second=round(report.bytes / seconds, 1) if deep and seconds else 0.0,
        findings=report.all_findings(),
    )


def _unhashed(plan: RecoveryPlan) -> list[str]:
    """What the recovery did not hash is said."""
    return [str(plan.coverage)] if plan.coverage.unhashed_files else []


def plan_place(
    place: Place,
    *,
    resume: str | None,
    accept_duplicates: bool,
    accept_loss: bool,
    verify: str,
) -> tuple[Recovery, RecoveryPlan]:
    """What opening the pipeline would do."""
    plan = recovery_plan(
        place.storage,
        place.pipeline,
        resume=resume,
        accept_duplicates=accept_duplicates,
        accept_loss=accept_loss,
        settings=Settings(recovery_verify=verify),  # type: ignore[arg-type]
    )
    value = Recovery(
        root=place.root,
        pipeline=place.pipeline,
        mode=plan.mode,
        checkpoint=plan.chosen.checkpoint if plan.chosen else None,
        epoch=plan.chosen.epoch if plan.chosen else None,
        epoch_next=plan.epoch_next,
        depth=plan.depth,
        candidates=[
            CandidateView(
                checkpoint=candidate.summary.checkpoint,
                epoch=candidate.summary.epoch,
                created_us=candidate.summary.created_us,
                verdict=candidate.verdict,
                findings=list(candidate.findings),
            )
            for candidate in plan.candidates
        ],
        abandon=[*plan.abandon],
        roll_forward=[
            TokenView(
                sink=token.sink,
                checkpoint=token.checkpoint,
                epoch=token.epoch,
                status=token.status,
                replay=token.replay,
            )
            for token in plan.roll_forward
        ],
        notes=[
            *plan.notes,
            *plan.lost_lines(),
            *_unhashed(plan),
            *(f"change: {change}" for change in plan.changes),
        ],
        refusal=failure_of(plan.refusal) if plan.refusal is not None else None,
    )
    return value, plan
