"""The reference of the API and of the settings is what signatures and docstrings say."""

from __future__ import annotations

import importlib.util

from tests.helpers.paths import ROOT


def test_the_reference_is_made_from_the_source():
    """docs/reference/api.md and settings.md are exactly what tools/make_api_docs.py writes."""
    spec = importlib.util.spec_from_file_location("api_docs", ROOT / "tools" / "make_api_docs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    remedy = "run `python tools/make_api_docs.py`"
    assert module.API.read_text(encoding="utf-8") == module.api_page(), remedy
    assert module.SETTINGS.read_text(encoding="utf-8") == module.settings_page(), remedy
