"""The checks as classes for pytest: subclass one, say how a rig is made, and run pytest.

The fixtures `spark` (a session) and `tmp_path` (pytest's own) must be there. Nothing here imports
pytest: each check is also a plain function.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.testing.connectors.rigs import SinkRig, SourceRig
from holdfast.testing.connectors.sink import SINK_CHECKS
from holdfast.testing.connectors.source import SOURCE_CHECKS

if TYPE_CHECKING:
    from holdfast.spark.annotations import SparkSession


class SourceSuite:
    """Every check of a source, as a test of its own: `class TestMine(SourceSuite): rig = MyRig`."""

    rig: type[SourceRig]


class SinkSuite:
    """Every check of a sink, as a test of its own: `class TestMine(SinkSuite): rig = MyRig`."""

    rig: type[SinkRig]


def _test(check: Callable[[Any], None]) -> Callable[..., None]:
    def test(self: Any, spark: SparkSession, tmp_path: Path) -> None:
        check(self.rig(tmp_path, spark))

    test.__doc__ = check.__doc__
    test.__name__ = check.__name__.replace("check_", "test_", 1)
    return test


for _suite, _checks in ((SourceSuite, SOURCE_CHECKS), (SinkSuite, SINK_CHECKS)):
    for _check in _checks:
        setattr(_suite, _check.__name__.replace("check_", "test_", 1), _test(_check))
