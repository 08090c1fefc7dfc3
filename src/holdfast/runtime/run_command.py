"""`holdfast run FILE`: a pipeline file with a live table of epochs.

The file declares exactly one `Pipeline` at module level; `if __name__ == "__main__": pipe.run()`
makes it a program of its own as well.

Ctrl-C once finishes the epoch that is under way, commits it and ends; twice abandons the epoch,
which leaves the last checkpoint as it was.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from holdfast.api.pipeline import Pipeline, loading
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.runtime.epoch_table import EpochTable
from holdfast.runtime.metrics import Metrics
from holdfast.runtime.report import EpochReport, RunSummary


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
    token = loading.set(True)
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
        loading.reset(token)
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


def run_command(
    file: str,
    *,
    master: str | None = None,
    partitions: int | None = None,
    forever: bool = False,
    epochs: int | None = None,
    resume: str | None = None,
    accept_duplicates: bool = False,
    allow_changes: bool = False,
    takeover: bool = False,
    label: str | None = None,
    properties: Sequence[str] = (),
    outputs: Sequence[str] = (),
    set_aside: Sequence[str] = (),
    redrive: Sequence[str] = (),
    dry_run: bool = False,
    metrics_port: int | None = None,
    plain: bool = False,
    quiet: bool = False,
    log_json: bool = False,
) -> RunSummary | None:
    """Run a pipeline file; None when Ctrl-C abandoned an epoch. `quiet` shows no table."""
    _set_up_logs(json_lines=log_json)
    try:
        pipe = load_pipeline(file)
        pipe.configure(master=master, partitions=partitions)
        pipe.check()
        if dry_run:
            return RunSummary(
                notes=pipe.plan_outputs(from_checkpoint=resume, outputs=_wishes(outputs))
            )
        metrics = Metrics(metrics_port, pipe.name) if metrics_port is not None else None
        # Spark installs a handler of its own that cancels the job: ours must come after it.
        pipe.session()
        with (
            EpochTable(pipe.name, plain=plain or quiet) as table,
            _Interrupts(_remark if quiet else table.say) as ctrl_c,
        ):

            def seen(report: EpochReport) -> None:
                if not quiet:
                    table.add(report)
                if metrics is not None:
                    metrics.add(report)

            return pipe.run(
                forever=forever, epochs=epochs, from_checkpoint=resume,
                accept_duplicates=accept_duplicates,
                allow_changes=allow_changes, takeover=takeover,
                label=label, properties=_properties(properties),
                outputs=_wishes(outputs), set_aside=set_aside, redrive=redrive,
                on_epoch=seen, on_checkpoint=metrics.add_checkpoint if metrics else None,
                stop=lambda: ctrl_c.asked,
            )  # fmt: skip
    except KeyboardInterrupt:
        return None


def _remark(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201


def _wishes(texts: Sequence[str]) -> dict[str, Any]:
    """`SINK=WISH` as a mapping; the pipeline refuses what it does not know."""
    return dict(text.partition("=")[::2] for text in texts)


def _properties(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidInputError(
                "a property is written KEY=VALUE", kind="invalid_property", property=text[:80]
            )
        found[key] = value
    return found


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        facts = getattr(record, "facts", None) or {"message": record.getMessage()}
        return json.dumps(text | facts, default=str)


def _set_up_logs(*, json_lines: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        _JsonLines() if json_lines else logging.Formatter("%(levelname)s %(message)s")
    )
    logger = logging.getLogger("holdfast")
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if json_lines else logging.WARNING)
    logger.propagate = False
