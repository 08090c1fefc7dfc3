"""Recovery: a pure, printable plan, made from evidence.

Invariants:
- Candidates are tried newest first; the plan says what was chosen and why each other one was not.
- An empty store is fresh. A store with artifacts but nothing valid is an error, never a fresh
  start.
- A token of a durable checkpoint without a committed outcome is rolled forward, in order of epoch.
- Falling back past an epoch that a sink has, or may have, published is refused unless that sink can
  retract or deduplicate, or the user accepts duplicates by name.
- Fingerprint and vnodes are compared before any state is touched.

Spec: spec/format-v2.md, section 6.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from holdfast.checkpoint.commit.catalog import REBUILD, lineage, off_lineage
from holdfast.checkpoint.recovery.evidence import NOTHING, Coverage, Evidence
from holdfast.checkpoint.recovery.witness import SHRANK
from holdfast.checkpoint.reference import Ref
from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    IncompatibleError,
    RefusedError,
)
from holdfast.format.documents import Replay, Summary
from holdfast.format.findings import Finding, errors_of
from holdfast.format.manifest import Manifest
from holdfast.format.topology import Topology, differences
from holdfast.ids import VNODE_COUNT, CheckpointId, Epoch

Verdict = Literal["chosen", "damaged", "newer than asked for", "older", "abandoned"]
_FIRST = Epoch(0)
Mode = Literal["fresh", "resume", "refuse"]


@dataclass(frozen=True)
class Candidate:
    """One checkpoint that recovery looked at, or did not need to."""

    summary: Summary
    verdict: Verdict
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class PendingToken:
    """A sink token whose outcome is not known to be committed."""

    checkpoint: CheckpointId
    epoch: Epoch
    sink: str
    token: str
    replay: Replay
    status: str


@dataclass(frozen=True)
class RecoveryPlan:
    """What opening the store for writing will do."""

    mode: Mode
    pipeline: str
    chosen: Summary | None = None
    manifest: Manifest | None = None
    epoch_next: Epoch = _FIRST
    depth: Literal["none", "shallow", "deep"] = "none"
    candidates: tuple[Candidate, ...] = ()
    abandon: tuple[CheckpointId, ...] = ()
    revive: tuple[CheckpointId, ...] = ()
    roll_forward: tuple[PendingToken, ...] = ()
    changes: tuple[str, ...] = ()
    rescue: tuple[Summary, ...] = ()
    notes: tuple[str, ...] = ()
    damaged: bool = False
    coverage: Coverage = NOTHING
    refusal: HoldfastError | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """The plan as a person reads it."""
        lines = [f"pipeline {self.pipeline}: {self._headline()}"]
        for candidate in self.candidates:
            entry = candidate.summary
            lines.append(f"  epoch {entry.epoch} {entry.checkpoint}: {candidate.verdict}")
            lines.extend(f"    {finding}" for finding in candidate.findings)
        lines.extend(f"  {line}" for line in self.lost_lines())
        if self.coverage != NOTHING:
            lines.append(f"  {self.coverage}")
        lines.extend(
            f"  sink {token.sink}: epoch {token.epoch} is {token.status}, will be committed"
            for token in self.roll_forward
        )
        lines.extend(f"  change: {change}" for change in self.changes)
        lines.extend(f"  note: {note}" for note in self.notes)
        return "\n".join(lines)

    def lost_lines(self) -> list[str]:
        """What is said of checkpoints whose records were lost."""
        return [
            f"epoch {entry.epoch} {entry.checkpoint}: its record was lost; `holdfast "
            "rebuild-catalog` before the start resumes from it, otherwise it is kept as abandoned"
            for entry in self.rescue
        ]

    def _headline(self) -> str:
        if self.mode == "refuse":
            return f"refused: {self.refusal}"
        if self.chosen is None:
            return f"nothing committed yet, starts at epoch {self.epoch_next}"
        depth = f" ({self.depth} verification)"
        return f"resumes from epoch {self.chosen.epoch}, next epoch is {self.epoch_next}{depth}"


@dataclass(frozen=True)
class RecoveryOptions:
    """What the user asks of a recovery."""

    topology: Topology | None = None
    resume: Ref | None = None
    accept_duplicates: bool = False
    accept_loss: bool = False
    allow_changes: bool = False


def plan_recovery(evidence: Evidence, options: RecoveryOptions) -> RecoveryPlan:
    """Decide. Pure: the same evidence and options give the same plan."""
    plan = RecoveryPlan(
        mode="fresh",
        pipeline=evidence.pipeline,
        depth=evidence.depth,
        notes=evidence.notes,
        epoch_next=Epoch(evidence.epoch_seen + 1),
        rescue=evidence.rescue,
        coverage=evidence.coverage,
        damaged=bool(evidence.state.damage or evidence.outcomes.damage)
        or any(errors_of([*findings]) for findings in evidence.checked.values()),
    )
    if evidence.failure is not None:
        return _refuse(plan, evidence.failure)
    state = evidence.state
    if options.topology is not None:
        vnodes = options.topology.vnodes
        if vnodes != (evidence.header.vnodes if evidence.header else VNODE_COUNT):
            return _refuse(plan, _vnodes_differ(evidence, vnodes))
    if not state.live and not state.damage:
        return plan
    plan = _choose(plan, evidence, options)
    if plan.mode == "refuse" or plan.chosen is None:
        return plan
    plan = replace(plan, roll_forward=_pending(plan, evidence))
    for check in (_check_topology, _check_sinks, _check_tokens):
        plan = check(plan, evidence, options)
        if plan.mode == "refuse":
            return plan
    return plan


def _choose(plan: RecoveryPlan, evidence: Evidence, options: RecoveryOptions) -> RecoveryPlan:
    """The newest intact candidate, or exactly the one that was asked for."""
    candidates: list[Candidate] = []
    chosen: Summary | None = None
    chain: dict[CheckpointId, Summary] = {}
    state = evidence.state
    for entry in reversed(state.live):
        findings = evidence.checked.get(entry.checkpoint)
        broken = findings is not None and any(f.severity == "error" for f in findings)
        verdict: Verdict
        if chosen is not None:
            verdict = "older" if entry.checkpoint in chain or not entry.abandoned else "abandoned"
        elif findings is None:
            verdict = "newer than asked for" if options.resume is not None else "abandoned"
        elif broken:
            verdict = "damaged"
        else:
            verdict, chosen = "chosen", entry
            chain = lineage(state.live, entry.checkpoint)
        candidates.append(Candidate(entry, verdict, findings or ()))
    plan = replace(plan, candidates=tuple(candidates))
    if chosen is None:
        return _refuse(plan, _nothing_intact(evidence, options))
    others = off_lineage(state.live, chosen.checkpoint)
    abandon = tuple(entry.checkpoint for entry in others if not entry.abandoned)
    return replace(
        plan,
        mode="resume",
        chosen=chosen,
        manifest=evidence.manifests[chosen.checkpoint],
        abandon=abandon,
        revive=tuple(checkpoint for checkpoint, entry in chain.items() if entry.abandoned),
    )


def _pending(plan: RecoveryPlan, evidence: Evidence) -> tuple[PendingToken, ...]:
    """Tokens of the chosen checkpoint and of older live ones that were never committed."""
    tokens: list[PendingToken] = []
    for entry in evidence.state.live:
        if not _stays(plan, entry):
            continue
        manifest = evidence.manifests.get(entry.checkpoint)
        for sink in manifest.sinks if manifest else ():
            status = evidence.outcomes.status(entry.checkpoint, sink.name)
            if status in ("pending", "failed"):
                tokens.append(
                    PendingToken(
                        entry.checkpoint, entry.epoch, sink.name, sink.token, sink.replay, status
                    )
                )
    return tuple(tokens)


def _stays(plan: RecoveryPlan, entry: Summary) -> bool:
    """Whether a checkpoint is part of the history that the plan resumes from."""
    if entry.checkpoint in plan.abandon:
        return False
    return not entry.abandoned or entry.checkpoint in plan.revive


def _check_topology(
    plan: RecoveryPlan, evidence: Evidence, options: RecoveryOptions
) -> RecoveryPlan:
    """The running pipeline must be the one that wrote the state."""
    del evidence
    if options.topology is None or plan.manifest is None:
        return plan
    changes = tuple(str(d) for d in differences(plan.manifest.topology, options.topology))
    plan = replace(plan, changes=changes)
    if changes and not options.allow_changes:
        return _refuse(
            plan,
            IncompatibleError(
                "the pipeline is not the one that wrote this checkpoint",
                kind="fingerprint_differs",
                differences="; ".join(changes[:20]),
                remedy="run the old pipeline, choose another name, or allow changes explicitly",
            ),
        )
    return plan


def _check_sinks(plan: RecoveryPlan, evidence: Evidence, options: RecoveryOptions) -> RecoveryPlan:
    """Epochs that will be run again must not be published twice."""
    if options.accept_duplicates or plan.chosen is None:
        return plan
    unsafe: list[str] = []
    for entry in evidence.state.live:
        if entry.checkpoint in plan.abandon:
            unsafe.extend(
                f"{sink.name} (epoch {entry.epoch}, {status})"
                for sink in entry.sinks
                if sink.replay == "none"
                and (status := evidence.outcomes.status(entry.checkpoint, sink.name)) != "aborted"
            )
    damaged = evidence.state.damaged_after
    if damaged is not None and damaged > plan.chosen.sequence:
        unsafe.extend(
            f"{sink.name} (record {damaged} is damaged, so its epoch is unknown)"
            for sink in plan.chosen.sinks
            if sink.replay == "none"
        )
    if not unsafe:
        return plan
    return _refuse(
        plan,
        RefusedError(
            "going back would let sinks publish epochs a second time",
            kind="unsafe_fallback",
            chosen_epoch=plan.chosen.epoch,
            sinks="; ".join(unsafe[:20]),
            remedy="repair the newer checkpoint, or accept duplicates by name (accept_duplicates)",
        ),
    )


def _check_tokens(plan: RecoveryPlan, evidence: Evidence, options: RecoveryOptions) -> RecoveryPlan:
    """A token that cannot be read any more is an epoch that a sink may never get."""
    lost = [
        f"{sink.name} (epoch {entry.epoch})"
        for entry in evidence.state.live
        if _stays(plan, entry)
        for sink in entry.sinks
        if entry.checkpoint not in evidence.manifests
        and evidence.outcomes.status(entry.checkpoint, sink.name) in ("pending", "failed")
    ]
    if not lost or options.accept_loss:
        return plan
    return _refuse(
        plan,
        RefusedError(
            "a sink's token cannot be read, so its epoch might never be published",
            kind="token_lost",
            sinks="; ".join(lost[:20]),
            remedy="bring the manifest back, or accept the loss by name (accept_loss)",
        ),
    )


def _refuse(plan: RecoveryPlan, refusal: HoldfastError) -> RecoveryPlan:
    return replace(plan, mode="refuse", refusal=refusal)


def _nothing_intact(evidence: Evidence, options: RecoveryOptions) -> CorruptionError:
    first = next(
        (f for findings in evidence.checked.values() for f in findings if f.severity == "error"),
        None,
    )
    asked = f" ({options.resume})" if options.resume is not None else ""
    shrank = next((f for f in evidence.state.damage if f.kind == SHRANK), None)
    if shrank is not None and not evidence.state.live:
        return CorruptionError(
            shrank.message,
            kind="catalog_shrank",
            path=shrank.path,
            expected=shrank.expected,
            actual=shrank.actual,
            remedy=REBUILD,
        )
    return CorruptionError(
        f"no checkpoint is intact{asked}",
        kind="no_intact_checkpoint",
        checkpoints=len(evidence.state.live),
        first=str(first) if first else None,
        remedy="bring the missing files back, or start a new pipeline under another name; "
        "nothing was changed",
    )


def _vnodes_differ(evidence: Evidence, vnodes: int) -> IncompatibleError:
    return IncompatibleError(
        "the store was made for another number of vnodes",
        kind="vnodes_differ",
        stored=evidence.header.vnodes if evidence.header else VNODE_COUNT,
        running=vnodes,
        remedy="use the number that the store was made for; nothing was changed",
    )
