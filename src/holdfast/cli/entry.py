"""The door of the command line.

Invariants:
- Exit 0 is good, 1 a problem that was found or met, 2 wrong usage. Never a traceback, unless
  HOLDFAST_DEBUG asks for one.
- Nothing that a verb does not need is imported: no pyspark, pyarrow, duckdb or obstore at start.
- Leaving early skips nothing that matters: output is flushed, and every verb closes what it opened.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

MISSING = (
    "holdfast: the command line needs two more packages. pip install 'holdfast[cli]' brings them"
)


def command() -> NoReturn:
    """The process `holdfast`: run the command line, and leave."""
    gc.set_threshold(50_000, 20, 100)  # loading makes many objects and next to no garbage
    code = main()
    if "duckdb" not in sys.modules or "pyspark" in sys.modules:
        sys.exit(code)
    # To take DuckDB, Arrow and numpy apart again would cost as much as many a query.
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        sys.exit(code)  # the interpreter says it as it always does
    os._exit(code)


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
