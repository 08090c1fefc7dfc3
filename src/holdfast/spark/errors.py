"""Spark's errors as the caller should see them: the root cause, where it lies, whether to retry.

Invariants:
- The whole chain of causes is looked at. What a job says first is only that it failed.
- `retryable` is true only for what can go away by itself or with room made: lost executors and
  workers, fetch failures, networks, full disks. Never for rows, files, types or code.
- Spark's own trace is chained to the error and never printed in place of it.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import holdfast.errors
from holdfast.errors import HoldfastError, InternalError, InvalidInputError, StorageError
from holdfast.spark.classic import causes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OURS = re.compile(r"holdfast\.errors\.(\w+): (.+)")
_CAUSE = re.compile(r"\bcause=([a-z_]+)")
_LAST = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception|Interrupt|Exit)): ?(.*)$", re.MULTILINE)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_FOREIGN = ("/pyspark/", "/py4j/", "/holdfast/", "<frozen", "<string>", "/lib/python3")
_STATE = re.compile(r"\s*SQLSTATE: (\w{5})")
_TRANSIENT = re.compile(
    r"ExecutorLost|executor \S+ exited|FetchFailed|MetadataFetchFailed|Remote RPC client"
    r"|java\.net\.(?:Socket|SocketTimeout|Connect|UnknownHost|NoRouteToHost)Exception"
    r"|Connection (?:reset|refused|timed out)|TimeoutException"
    r"|No space left on device|Disk quota exceeded|Python worker exited unexpectedly"
    r"|worker crashed|SlowDown|Service Unavailable|Too many open files|Job \d+ cancelled"
)

Explain = Callable[[str], Mapping[str, object] | None]


@dataclass(frozen=True)
class Cause:
    """One link of a chain of causes."""

    name: str
    message: str
    condition: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    expression: str = ""

    @property
    def state(self) -> str:
        """The SQLSTATE, where Spark gives one."""
        found = _STATE.search(self.message)
        return found.group(1) if found else ""

    @property
    def reason(self) -> str:
        """The message without its condition and its hints, in one line."""
        text = re.sub(r"^\[[A-Z0-9_.]+\] ", "", self.message)
        text = _STATE.split(text, maxsplit=1)[0].strip()
        line = " ".join((text.splitlines() or [""])[:2]).strip()
        return f"{self.name.rsplit('.', 1)[-1]}: {line}" if "." in self.name else line


def is_of_spark(error: Exception) -> bool:
    """Whether an error is one of Spark's, or of its bridge to Java."""
    return any(base.__module__.startswith(("pyspark", "py4j")) for base in type(error).__mro__)


def spark_failure(
    error: Exception, epoch: int | None, *, explain: Explain | None = None
) -> HoldfastError:
    """A typed error with the real cause in one line; the whole trace is chained to it.

    explain: facts about a file by its address, from the source that reads it.
    """
    chain = _chain(error)
    text = "\n".join([str(error), *(cause.message for cause in chain)])
    ours = _our_own(text, epoch)
    if ours is not None:
        return ours
    transient = _TRANSIENT.search(f"{text}\n{' '.join(cause.name for cause in chain)}")
    if transient is None:
        typed = _of_a_file(chain, epoch, explain) or _of_user_code(error, chain, epoch)
        typed = typed or _of_an_expression(chain, epoch)
        if typed is not None:
            return typed
    if not chain and not is_of_spark(error):
        return InternalError(
            "an epoch failed in a way that Holdfast did not expect",
            epoch=epoch,
            reason=f"{type(error).__name__}: {error}"[:500],
            remedy="the last checkpoint is untouched; please report this with its trace",
        )
    last = [cause for cause in chain if cause.message] or [Cause("", _last_line(text))]
    return StorageError(
        "the Spark job of an epoch failed",
        kind="job_failed",
        epoch=epoch,
        reason=_last_line(text)
        if transient and transient.group() not in last[-1].message
        else last[-1].reason[:500],
        because=transient.group() if transient else None,
        retryable=transient is not None,
        remedy="the last checkpoint is untouched: run again"
        if transient is not None
        else "the last checkpoint is untouched: mend the cause and run again",
    )


def explainer(readers: Mapping[str, Any], spark: SparkSession) -> Explain:
    """Asks every source whether a file is one of its own."""

    def explain(url: str) -> Mapping[str, object] | None:
        for reader in readers.values():
            facts: Mapping[str, object] | None = reader.explain(spark, url)
            if facts is not None:
                return facts
        return None

    return explain


def user_frame(text: str) -> str | None:
    """The last line of the user's own code in a traceback: `file:line in function`."""
    frames = [
        found for found in _FRAME.findall(text) if not any(part in found[0] for part in _FOREIGN)
    ]
    return f"{frames[-1][0]}:{frames[-1][1]} in {frames[-1][2]}" if frames else None


def user_code_failed(error: Exception, operator: str | None = None) -> InvalidInputError:
    """An exception of the user's own code in the driver."""
    trace = "".join(traceback.format_exception(error))
    return InvalidInputError(
        "code of the pipeline failed",
        kind="user_code_failed",
        operator=operator,
        at=user_frame(trace),
        reason=f"{type(error).__name__}: {error}"[:500],
        remedy="correct it and run again: the last checkpoint is untouched",
    )


def _our_own(text: str, epoch: int | None) -> HoldfastError | None:
    ours = _OURS.search(text)
    kind = getattr(holdfast.errors, ours.group(1), None) if ours else None
    if ours is None or not (isinstance(kind, type) and issubclass(kind, HoldfastError)):
        return None
    message = ours.group(2).strip()[:2000]
    cause = _CAUSE.search(message)
    facts: dict[str, Any] = {"epoch": None if " epoch=" in message else epoch}
    facts["at"] = user_frame(text)
    if issubclass(kind, StorageError) and "retryable=True" in message:
        facts["retryable"] = True
    return kind(message, kind=cause.group(1) if cause else "failed_in_task", **facts)


def _of_a_file(
    chain: list[Cause], epoch: int | None, explain: Explain | None
) -> HoldfastError | None:
    """A file that cannot be read, or is not there any more."""
    for cause in chain:
        gone = cause.condition in ("PATH_NOT_FOUND", "FAILED_READ_FILE.FILE_NOT_EXIST")
        if not gone and not cause.condition.startswith("FAILED_READ_FILE"):
            continue
        url = str(cause.parameters.get("path", ""))
        facts: dict[str, Any] = dict((explain(url) if explain else None) or {"path": url})
        if gone:
            return StorageError(
                "a file vanished before it was read",
                kind="file_vanished",
                epoch=epoch,
                retryable=True,
                remedy="nothing was committed: run again, and the file is not waited for; bring "
                "it back first if its rows count",
                **facts,
            )
        roots = [link for link in chain if link.message][-1]
        reason = roots.reason if roots.reason and roots is not cause else cause.reason
        if "PARQUET_COLUMN_DATA_TYPE_MISMATCH" in cause.condition:
            wanted, found = (cause.parameters.get(k) for k in ("expectedType", "actualType"))
            reason = f"column {cause.parameters.get('column')} is {found}, not {wanted}"
        return InvalidInputError(
            "a file cannot be read",
            kind="unreadable_file",
            epoch=epoch,
            reason=reason[:500],
            remedy="correct or remove the file, or the source's schema, format or options, and "
            "run again: nothing was committed",
            **facts,
        )
    return None


def _of_user_code(error: Exception, chain: list[Cause], epoch: int | None) -> HoldfastError | None:
    """An exception that Python code of the pipeline raised, in a task or in the driver."""
    for cause in chain:
        if cause.condition != "PYTHON_EXCEPTION" and not cause.name.endswith("PythonException"):
            continue
        text = str(cause.parameters.get("traceback") or cause.message)
        return InvalidInputError(
            "code of the pipeline failed in a task",
            kind="user_code_failed",
            epoch=epoch,
            at=user_frame(text),
            reason=_last_line(text),
            remedy="correct it and run again: the last checkpoint is untouched",
        )
    if not chain and not is_of_spark(error):
        trace = "".join(traceback.format_exception(error))
        if user_frame(trace.rsplit("\n  File", 1)[0]) and user_frame(trace) is not None:
            return user_code_failed(error)
    return None


def _of_an_expression(chain: list[Cause], epoch: int | None) -> HoldfastError | None:
    """Rows that an expression cannot take, or an expression that Spark cannot analyse."""
    for cause in chain:
        analysis = cause.name.endswith("AnalysisException")
        if not analysis and not cause.state.startswith(("22", "P0")):
            continue
        return InvalidInputError(
            "Spark cannot run this step" if analysis else "an expression failed on its rows",
            kind="analysis_failed" if analysis else "expression_failed",
            epoch=epoch,
            condition=cause.condition or None,
            expression=cause.expression or None,
            reason=cause.reason[:500],
            remedy="correct the expression, or filter such rows before it, and run again",
        )
    return None


def _last_line(text: str) -> str:
    found = _LAST.findall(text)
    return (f"{found[-1][0]}: {found[-1][1]}" if found else (text.splitlines() or [""])[0])[:500]


def _chain(error: Exception) -> list[Cause]:
    """The causes of an error, the outermost first."""
    links = [Cause(**vars(link)) for link in causes_of(error)]
    if hasattr(error, "getCondition") and not (links and links[0].condition):
        links[:1] = [_of_python(error, links[0] if links else None)]
    return links


def _of_python(error: Any, link: Cause | None) -> Cause:
    """What PySpark says of its own error; over Spark Connect, or without the JVM's names, all."""
    condition = error.getCondition() or ""
    if link is not None and not condition:
        return link
    parameters = dict(error.getMessageParameters() or {})
    name = link.name if link is not None else type(error).__name__
    return Cause(name, link.message if link is not None else str(error), condition, parameters)
