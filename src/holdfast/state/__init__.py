"""State: an operator's memory as immutable, sorted Arrow runs. No Spark in here.

Read first: `schema` (what a trace holds), `info` and `partition` (which runs speak for which
vnodes), then `latest` and `bag` (what an operator calls).
"""

from holdfast._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
