"""Run a pipeline file on a cluster: ship Holdfast, look at the executors, then run.

Invariants:
- Nothing of the store changes before every executor was found fit.
- Executors get the driver's Holdfast. What it needs besides is installed on the workers.
- The driver runs here, as with `holdfast run`: this process is what a supervisor restarts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from holdfast.cli.app import argument, command, option
from holdfast.cli.commands.run import (
    run_file,
    run_lines,
    run_options,
    running_needs_spark,
    summary_value,
)
from holdfast.cli.executor_checks import (
    cluster_options,
    executors_failed,
    expected,
    judge,
    parse_conf,
)
from holdfast.cli.output import emit, say
from holdfast.cli.parts import Check
from holdfast.cli.targets import json_option
from holdfast.errors import HoldfastError, InvalidInputError, StorageError

if TYPE_CHECKING:
    from holdfast.api.pipeline import Pipeline


def prepare_cluster(pipe: Pipeline, files: Sequence[str], wait_s: float) -> None:
    """Ship Holdfast, then refuse executors that could not run the pipeline."""
    from holdfast.spark.executors import REMOTE, REQUIRED, look_at_executors
    from holdfast.spark.package_zip import ship
    from holdfast.storage.open import OBJECT_SCHEMES

    spark, place = pipe.session(), pipe._place  # noqa: SLF001 - the command line runs pipelines
    say("shipping Holdfast to the executors")
    ship(spark, [*files])
    remote = place.url.split("://", 1)[0] in OBJECT_SCHEMES
    say("looking at the executors")
    try:
        found = look_at_executors(spark, place, timeout_s=wait_s)
    except HoldfastError:
        raise
    except Exception as error:
        raise _unfit([executors_failed(error)]) from error
    checks = judge(found, expected((*REQUIRED, *REMOTE), remote=remote, shipped=True))
    problems = [check for check in checks if check.status == "problem"]
    if problems:
        raise _unfit(problems)
    for check in checks:
        if check.status == "warning":
            say(f"warning: {check.name}: {check.found}; try: {check.remedy}")
    say(checks[0].found)


def _unfit(problems: Sequence[Check]) -> StorageError:
    remedies = dict.fromkeys(check.remedy for check in problems)
    return StorageError(
        "executors cannot run the pipeline",
        kind="executors_unfit",
        took_effect=False,
        found="; ".join(f"{check.name}: {check.found}" for check in problems)[:1_500],
        remedy=" | ".join(remedies),
    )


def _check_files(files: Sequence[str]) -> None:
    for path in files:
        if not os.path.isfile(path) or not path.endswith((".py", ".zip", ".egg")):
            raise InvalidInputError(
                "not a Python file or zip",
                kind="no_file",
                path=path,
                remedy="give --py-files the paths of .py files and .zip archives",
            )


@command(
    "holdfast submit orders.py --master spark://host:7077",
    "holdfast submit orders.py --master sc://host:15002 --forever",
)
@argument("file", "FILE", "Python file with a pipeline.")
@cluster_options
@option("--py-files", multiple=True, metavar="PATH", help="More modules for executors; repeat.")
@run_options
@json_option
def submit(
    *,
    file: str,
    as_json: bool,
    master: str | None,
    conf: Sequence[str],
    wait_s: float,
    py_files: Sequence[str],
    from_before: str | None,
    **options: Any,
) -> None:
    """Run a pipeline file on a cluster: ship Holdfast, look at the executors, then run.

    The workers need PyArrow, NumPy, msgspec and, for an object store, obstore. Exit 1 when an
    executor cannot run the pipeline; the store is untouched then.
    """
    running_needs_spark()
    if master is None:
        raise InvalidInputError(
            "a cluster is needed",
            kind="invalid_argument",
            argument="--master",
            remedy="give --master spark://host:7077 or sc://host:15002; "
            "`holdfast run` runs on this machine",
        )
    _check_files(py_files)
    options["from_checkpoint"] = options["from_checkpoint"] or from_before

    def prepare(pipe: Pipeline) -> None:
        prepare_cluster(pipe, py_files, wait_s)

    summary = run_file(
        file,
        master=master,
        quiet=as_json,
        spark_config=parse_conf(conf),
        prepare=prepare,
        **options,
    )
    emit(summary_value(summary), run_lines, as_json=as_json)
