"""A plugin: pipelines of other tests keep their stores in a bucket instead of a local directory.

`HOLDFAST_TEST_STORE=s3://bucket/prefix pytest -p tests.integration.cluster.elsewhere tests/operators`
"""

from __future__ import annotations

import os
from pathlib import Path

import holdfast
from holdfast import checkpoint

ROOT = os.environ.get("HOLDFAST_TEST_STORE", "")


def moved(store):
    """The address in the bucket of what would be a directory."""
    local = isinstance(store, Path) or (isinstance(store, str) and "://" not in store)
    return f"{ROOT}/{str(store).strip('/')}" if local else store


class Elsewhere(holdfast.Pipeline):
    """A pipeline whose store lies in the bucket."""

    def __init__(self, name, store, **options):
        super().__init__(name, moved(store), **options)


def pytest_configure():
    """Before any test is imported."""
    assert ROOT, "HOLDFAST_TEST_STORE says where"
    holdfast.Pipeline = Elsewhere
    for name in ("read_store", "open_store"):
        original = getattr(checkpoint, name)
        setattr(
            checkpoint, name,
            lambda store, *given, _original=original, **more: _original(
                moved(store), *given, **more
            ),
        )  # fmt: skip
