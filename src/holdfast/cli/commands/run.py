"""Run a pipeline until its sources are drained, with a live table of epochs.

The file declares exactly one `Pipeline` at module level; `if __name__ == "__main__": pipe.run()`
makes it a program of its own as well. This is the only command that may import pyspark.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from holdfast.cli.app import F, argument, command, flag, option
from holdfast.cli.epoch_table import EpochTable
from holdfast.cli.output import Value, emit, say
from holdfast.cli.render import Line, line
from holdfast.cli.targets import json_option
from holdfast.errors import HoldfastError, InvalidInputError

if TYPE_CHECKING:
    from holdfast.api.pipeline import Pipeline
    from holdfast.runtime.report import EpochReport, RunSummary


class Judged(Value, frozen=True, kw_only=True):
    """How many rows met an expectation, and how many failed."""

    passed: int
    failed: int


class Run(Value, frozen=True, kw_only=True, tag="holdfast.run/1", tag_field="schema"):
    """`holdfast run FILE`."""

    epochs: int
    rows: int
    changes: int
    late: int
    outdated: int
    bad: dict[str, int]
    expectations: dict[str, Judged]
    lag: dict[str, dict[str, float]]
    resumed_from: int | None
    last_epoch: int | None
    seconds: float
    notes: list[str]


# How it is built


def load_pipeline(file: str) -> Pipeline:
    """The one pipeline that a file declares."""
    from holdfast.api.pipeline import Pipeline, loading

    path = Path(file)
    if not path.is_file():
        raise InvalidInputError(
            "no such pipeline file",
            kind="no_file",
            path=file,
            remedy="give a Python file that declares a Pipeline",
        )
    sys.path.insert(0, str(path.parent.absolute()))
    before, sys.argv = sys.argv, [file]  # the file sees its own name, not our arguments
    token = loading.set(True)
    try:
        names = runpy.run_path(str(path), run_name="__holdfast__")
    except HoldfastError:
        raise
    except Exception as error:
        raise InvalidInputError(
            "the pipeline file failed",
            kind="file_failed",
            path=file,
            reason=f"{type(error).__name__}: {error}"[:300],
        ) from error
    finally:
        loading.reset(token)
        sys.argv = before
    pipelines = {id(value): value for value in names.values() if isinstance(value, Pipeline)}
    if len(pipelines) != 1:
        raise InvalidInputError(
            f"the file declares {len(pipelines)} pipelines, not one",
            kind="not_one_pipeline",
            path=file,
            remedy="declare exactly one Pipeline at module level",
        )
    return next(iter(pipelines.values()))


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

    def _handle(self, number: int, frame: object) -> None:
        del number, frame
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._say("finishing this epoch; press Ctrl-C again to abandon it")


def run_file(
    file: str,
    *,
    master: str | None = None,
    partitions: int | None = None,
    forever: bool = False,
    epochs: int | None = None,
    from_checkpoint: str | None = None,
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
    spark_config: Mapping[str, str] | None = None,
    prepare: Callable[[Pipeline], None] | None = None,
) -> RunSummary | None:
    """Run a file; None when Ctrl-C abandoned an epoch. `prepare` comes after Spark's start."""
    _set_up_logs(json_lines=log_json)
    try:
        from holdfast.runtime.metrics import Metrics
        from holdfast.runtime.report import RunSummary

        pipe = load_pipeline(file)
        pipe.configure(master=master, partitions=partitions, spark_config=spark_config)
        pipe.check()
        if dry_run:
            plan = pipe.plan_outputs(from_checkpoint=from_checkpoint, outputs=_wishes(outputs))
            return RunSummary(notes=plan)
        metrics = Metrics(metrics_port, pipe.name) if metrics_port is not None else None
        # Spark installs a handler of its own that cancels the job: ours must come after it.
        pipe.session()
        if prepare is not None:
            prepare(pipe)
        with (
            EpochTable(pipe.name, plain=plain or quiet) as table,
            _Interrupts(say if quiet else table.say) as ctrl_c,
        ):

            def seen(report: EpochReport) -> None:
                if not quiet:
                    table.add(report)
                if metrics is not None:
                    metrics.add(report)

            return pipe.run(
                forever=forever,
                epochs=epochs,
                from_checkpoint=from_checkpoint,
                accept_duplicates=accept_duplicates,
                allow_changes=allow_changes,
                takeover=takeover,
                label=label,
                properties=_properties(properties),
                outputs=_wishes(outputs),
                set_aside=set_aside,
                redrive=redrive,
                on_epoch=seen,
                on_checkpoint=metrics.add_checkpoint if metrics else None,
                stop=lambda: ctrl_c.asked,
            )
    except KeyboardInterrupt:
        return None


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


def summary_value(summary: RunSummary | None) -> Run:
    """What `--json` prints of a run."""
    if summary is None:
        raise HoldfastError("abandoned: the last checkpoint is as it was", kind="interrupted")
    return Run(
        epochs=summary.epochs,
        rows=summary.rows,
        changes=summary.changes,
        late=summary.late,
        outdated=summary.outdated,
        bad=dict(summary.bad),
        expectations={
            name: Judged(passed=one.passed, failed=one.failed)
            for name, one in summary.expectations.items()
        },
        lag={name: dict(lag.facts()) for name, lag in summary.lag.items()},
        resumed_from=summary.resumed_from,
        last_epoch=summary.last_epoch,
        seconds=round(summary.milliseconds / 1_000, 3),
        notes=[*summary.notes],
    )


def run_lines(value: Run) -> Iterator[Line]:
    """What was done, and what is worth knowing."""
    resumed = "" if value.resumed_from is None else f", resumed after epoch {value.resumed_from}"
    yield line(
        f"{value.epochs} epochs, {value.rows} rows, {value.changes} changes, {value.late} late, "
        f"{value.seconds:.1f} s{resumed}"
    )
    yield from (line(f"note: {note}") for note in value.notes)


_RUN_OPTIONS = (
    flag("--forever", help="Wait for more when drained."),
    option("--epochs", type=click.IntRange(min=1), metavar="N", help="Stop after so many."),
    option("--from-checkpoint", metavar="REF", help="Go back to this checkpoint first."),
    option("--resume", "from_before", hidden=True),  # what it was called
    flag("--accept-duplicates", help="Let a sink publish epochs twice."),
    flag("--allow-changes", help="The pipeline may differ from the one of the store."),
    flag("--takeover", help="Fence another live writer."),
    option("--label", metavar="NAME", help="A label for the checkpoints of this run."),
    option(
        "--property",
        "properties",
        multiple=True,
        metavar="KEY=VALUE",
        help="A note on the checkpoints; repeat.",
    ),
    option(
        "--output",
        "outputs",
        multiple=True,
        metavar="SINK=WISH",
        help="adopt, keep or empty an output that is not simply continued.",
    ),
    option(
        "--set-aside",
        multiple=True,
        metavar="SINK",
        help="Move epochs that this sink cannot publish to quarantine.",
    ),
    option("--redrive", multiple=True, metavar="SINK", help="Publish what was set aside."),
    flag("--dry-run", help="Only say what would become of the outputs."),
    option("--partitions", type=int, metavar="N", help="How many tasks share the state."),
    option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve Prometheus metrics on loopback.",
    ),
    flag("--plain", help="One line an epoch."),
    flag("--log-json", help="Structured logs on standard error."),
)


def run_options(function: F) -> F:
    """The options of `run`, but for where: `submit` has them, too."""
    for decorate in reversed(_RUN_OPTIONS):
        function = decorate(function)
    return function


def running_needs_spark() -> None:
    """Say so where it is not installed."""
    try:
        import holdfast.api.pipeline  # noqa: F401 - tried first: only its absence gets this sentence
    except ImportError as error:
        raise InvalidInputError(
            "running pipelines needs Spark",
            kind="missing_extra",
            missing=error.name or None,
            remedy="pip install 'holdfast-spark[spark]', and see `holdfast doctor` for Java",
        ) from error


@command("holdfast run pipelines/orders.py", "holdfast run --forever orders.py")
@argument("file", "FILE", "Python file with a pipeline.")
@run_options
@option("--master", metavar="URL", help="Spark's master, or sc:// for Connect.")
@json_option
def run(*, file: str, as_json: bool, from_before: str | None, **options: Any) -> None:
    """Run a pipeline until its sources are drained, with a live table of epochs.

    FILE declares one Pipeline and does not run it. Options may stand before or after FILE.
    """
    running_needs_spark()
    options["from_checkpoint"] = options["from_checkpoint"] or from_before
    emit(summary_value(run_file(file, quiet=as_json, **options)), run_lines, as_json=as_json)
