"""Retention: which checkpoints stay. A pure decision.

Invariants:
- Kept: the newest K fully committed ones; every one whose sinks are still pending; the pinned; the
  young; those named in `keep`. At least one fully committed checkpoint always stays.
- Abandoned checkpoints stay as long as a kept one is older than they are, so that a rollback can be
  undone.
- Partial directories are not checkpoints and never count.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from holdfast.checkpoint.commit.catalog import CatalogState
from holdfast.checkpoint.reader import Outcomes
from holdfast.format.documents import Pin, Summary
from holdfast.ids import CheckpointId
from holdfast.settings import Settings


@dataclass(frozen=True)
class Kept:
    """A checkpoint that stays, and why."""

    summary: Summary
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class RetentionPlan:
    """What stays and what goes."""

    keep: tuple[Kept, ...]
    drop: tuple[Summary, ...]

    def __str__(self) -> str:
        """The plan as a person reads it."""
        lines = [
            f"keep epoch {kept.summary.epoch} {kept.summary.checkpoint}: {', '.join(kept.reasons)}"
            for kept in self.keep
        ]
        lines += [f"drop epoch {entry.epoch} {entry.checkpoint}" for entry in self.drop]
        return "\n".join(lines)


def plan_retention(
    state: CatalogState,
    outcomes: Outcomes,
    pins: Collection[Pin],
    *,
    settings: Settings,
    now_us: int,
    keep: Collection[CheckpointId] = (),
) -> RetentionPlan:
    """Decide what stays."""
    pinned: dict[CheckpointId, list[str]] = {}
    for pin in pins:
        pinned.setdefault(pin.checkpoint, []).append(pin.label)
    committed = [entry for entry in state.candidates if outcomes.fully_committed(entry)]
    newest = {entry.checkpoint for entry in committed[: settings.retain]}
    oldest_kept = min((entry.sequence for entry in committed[: settings.retain]), default=None)
    kept: list[Kept] = []
    drop: list[Summary] = []
    for entry in reversed(state.live):
        reasons = []
        if entry.checkpoint in newest:
            reasons.append(f"one of the newest {settings.retain}")
        if not entry.abandoned and not outcomes.fully_committed(entry):
            reasons.append("sinks are still pending")
        if entry.checkpoint in pinned:
            reasons.append("pinned as " + ", ".join(sorted(pinned[entry.checkpoint])))
        # A clock that was set back makes checkpoints seem to come from the future: young, too.
        age_us = settings.retain_age_ms * 1_000
        if age_us and now_us - entry.created_us < age_us:
            reasons.append("young")
        if entry.checkpoint in keep:
            reasons.append("named")
        if entry.abandoned and (oldest_kept is None or entry.sequence > oldest_kept):
            reasons.append("abandoned, but newer than a kept one")
        if reasons:
            kept.append(Kept(entry, tuple(reasons)))
        else:
            drop.append(entry)
    return RetentionPlan(tuple(kept), tuple(drop))
