"""Errors from executors, as the caller should see them: the cause first, Spark's trace behind."""

from __future__ import annotations

import re

from holdfast.errors import HoldfastError, StorageError

_OURS = re.compile(r"holdfast\.errors\.(\w+): (.+)")
_CAUSE = re.compile(r"\bcause=([a-z_]+)")
_LAST = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


def spark_failure(error: Exception, epoch: int) -> HoldfastError:
    """A typed error with the real cause in one line; the whole trace is chained to it."""
    from holdfast import errors

    text = str(error)
    ours = _OURS.search(text)
    if ours is not None:
        kind = getattr(errors, ours.group(1), HoldfastError)
        if isinstance(kind, type) and issubclass(kind, HoldfastError):
            text = ours.group(2).strip()[:2000]
            cause = _CAUSE.search(text)
            return kind(text, kind=cause.group(1) if cause else "failed_in_task", epoch=epoch)
    causes = _LAST.findall(text)
    reason = f"{causes[-1][0]}: {causes[-1][1]}" if causes else (text.splitlines() or [""])[0]
    return StorageError(
        "the Spark job of an epoch failed",
        kind="job_failed",
        epoch=epoch,
        reason=reason[:500],
        retryable=True,
        remedy="the last checkpoint is untouched: mend the cause and run again",
    )
