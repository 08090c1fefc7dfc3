"""Fixtures of the unit tests, and how many examples their properties try."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.rig import Rig

_EXAMPLES = 60
_MORE = 20 if os.environ.get("HOLDFAST_SOAK") == "1" else 1

settings.register_profile(
    "holdfast-unit",
    max_examples=_EXAMPLES * _MORE,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("holdfast-unit")


@pytest.fixture
def rig(tmp_path):
    """A pipeline on real files, with a manual clock and seeded ids."""
    return Rig(tmp_path / "root")
