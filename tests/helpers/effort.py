"""How much a test tries: a little in `make test-fast`, enough in `make test`, a lot in `make soak`."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

FAST = os.environ.get("HOLDFAST_FAST") == "1"
SOAK = os.environ.get("HOLDFAST_SOAK") == "1"
_FACTOR = 20 if SOAK else 0.25 if FAST else 1


def every(soak: int, test: int, fast: int | None = None) -> int:
    """How many places a series steps forward: `soak` is the smallest, usually 1."""
    return soak if SOAK else fast if FAST and fast is not None else test


def examples(count: int, *, factor: float = _FACTOR) -> settings:
    """Hypothesis settings for this many examples in `make test`."""
    return settings(
        max_examples=max(round(count * factor), 4),
        deadline=None,
        print_blob=True,
        suppress_health_check=[
            HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture,
        ],
    )  # fmt: skip
