"""Files of `examples/` as modules."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.helpers.paths import ROOT


def example(path: str) -> ModuleType:
    """One file below `examples/`, loaded once."""
    name = "holdfast_example_" + "".join(c if c.isalnum() else "_" for c in path)
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
