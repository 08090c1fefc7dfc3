"""Values of the verbs that look at this machine or use it: `doctor`, `prepare`, `run`."""

from __future__ import annotations

from typing import Literal

from holdfast.cli.values import Value


class Check(Value, frozen=True, kw_only=True):
    """One thing that `doctor` looked at."""

    name: str
    status: Literal["ok", "warning", "problem", "skipped"]
    found: str
    remedy: str = ""


class Diagnosis(Value, frozen=True, kw_only=True, tag="holdfast.doctor/1", tag_field="schema"):
    """`doctor`."""

    store: str | None
    ok: bool
    checks: list[Check]


class Preparation(Value, frozen=True, kw_only=True, tag="holdfast.prepare/1", tag_field="schema"):
    """`prepare`."""

    path: str | None
    bytes: int
    seconds: float
    made: bool
    deleted: list[str]


class Run(Value, frozen=True, kw_only=True, tag="holdfast.run/1", tag_field="schema"):
    """`run`."""

    epochs: int
    rows: int
    changes: int
    late: int
    resumed_from: int | None
    last_epoch: int | None
    seconds: float
    notes: list[str]
