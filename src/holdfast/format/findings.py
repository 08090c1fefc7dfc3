"""Findings: what a check noticed, with a severity on every one."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]


class Finding(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One thing that a check noticed.

    error: the checkpoint cannot be trusted. warning: it can, but look. info: worth knowing.
    """

    severity: Severity
    kind: str
    message: str
    path: str = ""
    expected: str = ""
    actual: str = ""

    def __str__(self) -> str:
        """One line for a person."""
        facts = [
            f"{name}={value}"
            for name, value in (
                ("path", self.path),
                ("expected", self.expected),
                ("actual", self.actual),
            )
            if value
        ]
        return f"{self.severity}: {self.message}" + (f" ({' '.join(facts)})" if facts else "")


def errors_of(findings: list[Finding]) -> list[Finding]:
    """Only those that forbid trust."""
    return [finding for finding in findings if finding.severity == "error"]
