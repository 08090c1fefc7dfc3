"""The contract of connectors as checks: every connector of Holdfast passes them, and so can yours.

A check makes nothing up about the world outside: a rig (`SourceRig`, `SinkRig`) lets rows come and
reads what was published. Each check is a plain function of a rig; `SourceSuite` and `SinkSuite` are
the same as classes for pytest. How to use them: docs/guides/connectors.md.
"""

from holdfast.testing.connectors.rigs import ConformanceError, SinkRig, SourceRig
from holdfast.testing.connectors.sink import SINK_CHECKS
from holdfast.testing.connectors.source import SOURCE_CHECKS
from holdfast.testing.connectors.suites import SinkSuite, SourceSuite

__all__ = [
    "SINK_CHECKS",
    "SOURCE_CHECKS",
    "ConformanceError",
    "SinkRig",
    "SinkSuite",
    "SourceRig",
    "SourceSuite",
]
