"""Fixtures of the unit tests."""

from __future__ import annotations

import pytest

from tests.helpers.rig import Rig


@pytest.fixture
def rig(tmp_path):
    """A pipeline on real files, with a manual clock and seeded ids."""
    return Rig(tmp_path / "root")
