"""Show which checkpoint the pipeline would resume from, and why not the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.checkpoint.recovery.open import recovery_plan
from holdfast.checkpoint.recovery.plan import RecoveryPlan
from holdfast.cli.app import command, flag, option
from holdfast.cli.failures import Failure, failure_of
from holdfast.cli.output import Value, emit
from holdfast.cli.parts import failure, findings
from holdfast.cli.render import (
    BAD,
    DIM,
    GOOD,
    WARN,
    Col,
    Line,
    line,
    short_ids,
    table,
    when,
    wrapped,
)
from holdfast.cli.targets import (
    Place,
    find_place,
    named,
    parse_options,
    store_argument,
    store_options,
)
from holdfast.errors import InvalidInputError
from holdfast.format.findings import Finding
from holdfast.settings import Settings


class CandidateView(Value, frozen=True, kw_only=True):
    """A checkpoint that recovery looked at, or did not need to."""

    checkpoint: str
    epoch: int
    created_us: int
    verdict: str
    findings: list[Finding]


class TokenView(Value, frozen=True, kw_only=True):
    """A sink's epoch that recovery will publish."""

    sink: str
    checkpoint: str
    epoch: int
    status: str
    replay: str


class Recovery(Value, frozen=True, kw_only=True, tag="holdfast.recover/1", tag_field="schema"):
    """`holdfast recover --plan STORE`."""

    root: str
    pipeline: str
    mode: str
    checkpoint: str | None
    epoch: int | None
    epoch_next: int
    depth: str
    candidates: list[CandidateView]
    abandon: list[str]
    roll_forward: list[TokenView]
    notes: list[str]
    refusal: Failure | None


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


def _unhashed(plan: RecoveryPlan) -> list[str]:
    """What the recovery did not hash is said."""
    return [str(plan.coverage)] if plan.coverage.unhashed_files else []


def recovery_lines(value: Recovery) -> Iterator[Line]:
    """What opening would do."""
    if value.refusal is not None:
        yield from failure(value.refusal)
    elif value.checkpoint is None:
        yield line("fresh: ", f"nothing committed yet, starts at epoch {value.epoch_next}")
    else:
        yield line(
            ("resumes", GOOD),
            f" from epoch {value.epoch}, next is {value.epoch_next} ({value.depth} check)",
        )
    names = short_ids([each.checkpoint for each in value.candidates])
    rows = [
        (
            (names[each.checkpoint], "cyan"),
            str(each.epoch),
            when(each.created_us),
            (each.verdict, {"chosen": GOOD, "damaged": BAD}.get(each.verdict, DIM)),
        )
        for each in value.candidates
    ]
    if rows:
        yield from table(
            [Col("id"), Col("epoch", right=True), Col("created"), Col("verdict", cut=True)], rows
        )
    for each in value.candidates:
        if each.verdict == "damaged":
            yield line((names[each.checkpoint], "cyan"), ":")
            yield from findings(each.findings)
    for token in value.roll_forward:
        yield from wrapped(
            f"sink {token.sink}: epoch {token.epoch} is {token.status}, will be published",
            style=WARN,
        )
    for note in value.notes:
        yield from wrapped(f"note: {note}")


@command("holdfast recover --plan checkpoints/orders")
@store_argument
@flag("--plan", help="Show what would be chosen.")
@option("--to", metavar="REF", help="As if this one were asked for.")
@flag("--accept-duplicates", help="As if duplicates were accepted.")
@flag("--accept-loss", help="As if a lost sink token were accepted.")
@option("--verify", "check", metavar="HOW", default="auto", help="auto, shallow or deep.")
@store_options
def recover(
    *,
    store: str,
    plan: bool,
    to: str | None,
    accept_duplicates: bool,
    accept_loss: bool,
    check: str,
    pipeline: str | None,
    as_json: bool,
    option: Sequence[str],
) -> bool:
    """Show which checkpoint the pipeline would resume from, and why not the others.

    Nothing is changed: recovery itself happens when the pipeline starts. Exit 1 when a checkpoint
    is damaged or recovery would be refused.
    """
    if not plan:
        raise InvalidInputError(
            "recovery happens when the pipeline starts; this command only shows the plan",
            kind="plan_only",
            remedy="give --plan, or use `holdfast restore` to go back to a checkpoint",
        )
    place = find_place(store, pipeline, parse_options(option))
    place.reader.header()
    wanted = None if to is None else named(place, to).checkpoint
    value, made = plan_place(
        place,
        resume=wanted,
        accept_duplicates=accept_duplicates,
        accept_loss=accept_loss,
        verify=check,
    )
    emit(value, recovery_lines, as_json=as_json)
    return made.refusal is not None or made.damaged
