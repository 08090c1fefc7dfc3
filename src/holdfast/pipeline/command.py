"""`holdfast run FILE`: a pipeline file with a live table of epochs.

The file declares exactly one `Pipeline` at module level; `if __name__ == "__main__": pipe.run()`
makes it a program of its own as well.

Ctrl-C once finishes the epoch that is under way, commits it and ends; twice abandons the epoch,
which leaves the last checkpoint as it was.
"""

from __future__ import annotations

import argparse
import json
import logging
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.pipeline.metrics import Metrics
from holdfast.pipeline.pipeline import Pipeline
from holdfast.pipeline.report import EpochReport, RunSummary
from holdfast.pipeline.table import EpochTable


def load_pipeline(file: str) -> Pipeline:
    """The one pipeline that a file declares."""
    path = Path(file)
    if not path.is_file():
        raise InvalidInputError(
            "no such pipeline file", kind="no_file", path=file,
            remedy="give a Python file that declares a Pipeline",
        )  # fmt: skip
    sys.path.insert(0, str(path.parent.absolute()))
    before, sys.argv = sys.argv, [file]  # the file sees its own name, not our arguments
    try:
        names = runpy.run_path(str(path), run_name="__holdfast__")
    except HoldfastError:
        raise
    except Exception as error:
        raise InvalidInputError(
            "the pipeline file failed", kind="file_failed", path=file,
            reason=f"{type(error).__name__}: {error}"[:300],
        ) from error  # fmt: skip
    finally:
        sys.argv = before
    found = {id(value): value for value in names.values() if isinstance(value, Pipeline)}
    if len(found) != 1:
        raise InvalidInputError(
            f"the file declares {len(found)} pipelines, not one", kind="not_one_pipeline",
            path=file, remedy="declare exactly one Pipeline at module level",
        )  # fmt: skip
    return next(iter(found.values()))


class _Interrupts:
    """The first Ctrl-C asks for an end after this epoch, the second one abandons the epoch."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.asked = False
        self._say = say
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: Any) -> None:
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("finishing this epoch; press Ctrl-C again to abandon it")


def run_command(file: str, arguments: Sequence[str] = ()) -> int:
    """Run a pipeline file; returns the exit code."""
    options = _parser().parse_args([*arguments])
    _set_up_logs(json_lines=options.log_json)
    try:
        pipe = load_pipeline(file)
        pipe.configure(master=options.master, partitions=options.partitions)
        metrics = Metrics(options.metrics_port) if options.metrics_port is not None else None
        # Spark installs a handler of its own that cancels the job: ours must come after it.
        pipe.session()
        with EpochTable(pipe.name, plain=options.plain) as table, _Interrupts(table.say) as ctrl_c:

            def seen(report: EpochReport) -> None:
                table.add(report)
                if metrics is not None:
                    metrics.add(report)

            summary = pipe.run(
                forever=options.forever, epochs=options.epochs, resume=options.resume,
                accept_duplicates=options.accept_duplicates,
                allow_changes=options.allow_changes, takeover=options.takeover,
                on_epoch=seen, stop=lambda: ctrl_c.asked,
            )  # fmt: skip
        _show(summary)
    except KeyboardInterrupt:
        print("abandoned: the last checkpoint is as it was", file=sys.stderr)  # noqa: T201
        return 130
    except HoldfastError as error:
        print(f"error ({error.kind}): {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="holdfast run", description="Run a pipeline file.")
    parser.add_argument("--master", help="Spark master, or sc:// for Spark Connect")
    parser.add_argument("--partitions", type=int, help="how many tasks share the state")
    parser.add_argument("--forever", action="store_true", help="wait for more when drained")
    parser.add_argument("--epochs", type=int, help="stop after so many epochs")
    parser.add_argument("--resume", help="go back to this checkpoint first")
    parser.add_argument("--accept-duplicates", action="store_true",
                        help="allow a sink to publish epochs twice")  # fmt: skip
    parser.add_argument("--allow-changes", action="store_true",
                        help="the pipeline may differ from the one that wrote the store; "
                        "new operators and sinks are filled")  # fmt: skip
    parser.add_argument("--takeover", action="store_true", help="fence another live writer")
    parser.add_argument("--metrics-port", type=int, help="serve Prometheus metrics on loopback")
    parser.add_argument("--plain", action="store_true", help="one line an epoch, no live table")
    parser.add_argument("--log-json", action="store_true", help="structured logs on standard error")
    return parser


def _show(summary: RunSummary) -> None:
    resumed = (
        "" if summary.resumed_from is None else f", resumed after epoch {summary.resumed_from}"
    )
    print(  # noqa: T201
        f"{summary.epochs} epochs, {summary.rows} rows, {summary.changes} changes, "
        f"{summary.late} late, {summary.milliseconds / 1000:.1f} s{resumed}"
    )
    for note in summary.notes:
        print(f"note: {note}")  # noqa: T201


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = {
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        extra = getattr(record, "facts", None)
        return json.dumps(text | (extra or {}))


def _set_up_logs(*, json_lines: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        _JsonLines() if json_lines else logging.Formatter("%(levelname)s %(message)s")
    )
    logger = logging.getLogger("holdfast")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if json_lines else logging.WARNING)
    logger.propagate = False
