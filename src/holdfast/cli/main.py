"""The entry of the command line: one process, one exit code.

Invariants:
- Exit 0 is good, 1 a problem that was found or met, 2 wrong usage, 130 Ctrl-C. Never a traceback,
  unless HOLDFAST_DEBUG asks for one.
- Nothing that a command does not need is imported: no pyspark, pyarrow, duckdb or obstore at start.
- Leaving early skips nothing that matters: output is flushed, every command closes what it opened.
"""

from __future__ import annotations

import os
import signal
import sys

from holdfast_command import interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

MISSING = (
    "holdfast: the command line needs one more package. pip install 'holdfast-spark[cli]' brings it"
)
_MISSING_JSON = (
    '{"schema":"holdfast.error/1","kind":"missing_extra","what":"the command line needs one more '
    'package","facts":{},"remedy":"pip install \'holdfast-spark[cli]\'"}\n'
)


def command() -> NoReturn:
    """The process `holdfast`: run the command line, and leave."""
    signal.signal(signal.SIGINT, interrupted)
    _fill_streams()
    sys.unraisablehook = _unraisable
    if not os.environ.get("HOLDFAST_DEBUG"):
        os.environ["RUST_BACKTRACE"] = (
            "0"  # a client library that panics prints one line, not fifty
        )
    import gc

    gc.set_threshold(50_000, 20, 100)  # loading makes many objects and next to no garbage
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done: only leaving is left
    if "pyspark" in sys.modules or "click" not in sys.modules:
        sys.exit(code)
    # To take DuckDB, Arrow and numpy apart again would cost as much as many a query.
    _leave(code)


def _fill_streams() -> None:
    """No file of a store may get the number of a closed standard stream."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - it lives as long as the process


def _unraisable(event: Any) -> None:
    """Ctrl-C inside a destructor is no news."""
    if not issubclass(event.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(event)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        import click  # noqa: F401 - tried first, so that only its absence gets this sentence
    except ImportError:
        if sys.stderr is not None:
            sys.stderr.write(f"{MISSING}\n")
        if "--json" in arguments and sys.stdout is not None:
            sys.stdout.write(_MISSING_JSON)
        return 2
    import holdfast.cli.app  # noqa: F401 - while it loads, Ctrl-C is still answered at once

    if signal.getsignal(signal.SIGINT) is interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run_app(arguments)


def run_app(arguments: Sequence[str]) -> int:
    """Run the application and return its exit code, whatever happens."""
    from holdfast.cli.failures import PROBLEM
    from holdfast.cli.output import Closed, OutputError, mute, say, write

    if sys.stdout is None:
        sys.stdout = Closed()
    try:
        code = _run(arguments, as_json="--json" in arguments)
        write("")
    except OutputError as error:
        mute()
        say(f"holdfast: standard output cannot be written\n  reason: {error}")
        return PROBLEM
    return code


def _run(arguments: Sequence[str], *, as_json: bool) -> int:
    import click

    from holdfast.cli.app import app
    from holdfast.cli.failures import complain, is_usage, misused
    from holdfast.cli.output import OutputError

    try:
        code = app.main(args=list(arguments), prog_name="holdfast", standalone_mode=False)
    except SystemExit as end:
        code = end.code
    except OutputError:
        raise
    except click.Abort:
        return complain(KeyboardInterrupt(), as_json=as_json)
    except BaseException as error:
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise OutputError(error.strerror or str(error)) from error
        if not is_usage(error):
            return complain(error, as_json=as_json)
        return misused(error, as_json=as_json)
    return code if isinstance(code, int) else int(code is not None)


def _leave(code: int) -> NoReturn:
    """End the process at once, after output that is still held back."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    os._exit(code)
