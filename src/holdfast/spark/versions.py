"""Which Sparks Holdfast is tried with: `make test-sparks` runs a short suite on each of them."""

from __future__ import annotations

SUPPORTED = ("4.0", "4.1", "4.2", "4.3")
RANGE = f"{SUPPORTED[0]} to {SUPPORTED[-1]}"


def minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
