"""The door of the command line.

Invariants:
- Exit 0 is good, 1 a problem that was found or met, 2 wrong usage. Never a traceback, unless
  HOLDFAST_DEBUG asks for one.
- Nothing that a verb does not need is imported: no pyspark, pyarrow, duckdb or obstore at start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

MISSING = (
    "holdfast: the command line needs two more packages. pip install 'holdfast[cli]' brings them"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        import typer  # noqa: F401 - tried first, so that only its absence gets this sentence
    except ImportError:
        sys.stderr.write(f"{MISSING}\n")
        return 2
    from holdfast.cli.app import app

    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        app(args=arguments, prog_name="holdfast")
    except SystemExit as end:
        return _code(end.code)
    except KeyboardInterrupt:
        sys.stderr.write("holdfast: interrupted\n")
        return 130
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python would complain again while shutting down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    return 0


def _code(code: object) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else 1
