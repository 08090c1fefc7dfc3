"""The process `holdfast`: Ctrl-C is one line from the first moment on.

Loading the package takes a while. Until the command line is loaded and takes over, a handler that
needs nothing but the standard library answers.
"""

from __future__ import annotations

import os
import signal
import sys

_INTERRUPTED = b"holdfast: interrupted\n"
_INTERRUPTED_JSON = (
    b'{"schema":"holdfast.error/1","kind":"interrupted","what":"interrupted","facts":{},'
    b'"remedy":""}\n'
)


def interrupted(number: int, frame: object) -> None:
    """Leave at once: nothing was begun, so nothing needs an end."""
    del number, frame
    if "--json" in sys.argv:
        os.write(1, _INTERRUPTED_JSON)
    os.write(2, _INTERRUPTED)
    os._exit(130)


def command() -> None:
    """Run the command line, and leave."""
    signal.signal(signal.SIGINT, interrupted)
    from holdfast.cli.main import command as run

    run()


if __name__ == "__main__":
    command()
