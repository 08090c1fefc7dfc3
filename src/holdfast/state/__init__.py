"""State: an operator's memory as immutable, sorted Arrow runs. No Spark in here.

Read first:
- `schema`: what a trace holds.
- `run_info`, `partition`: which runs speak for which vnodes.
- `latest`, `bag`: what an operator calls; both look keys up by `lookup`.
- `run_writer`, `run_reader`: the file itself. Specification: spec/run-v1.md.
- `compaction`: several runs become one.
"""

from holdfast._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
