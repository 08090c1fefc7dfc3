"""Runs a test for every kind of document."""

from __future__ import annotations

import pytest

from tests.helpers.documents import CODECS


@pytest.fixture(params=CODECS, ids=lambda codec: codec.name)
def codec(request):
    """One kind of document."""
    return request.param
