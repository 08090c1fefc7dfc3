"""Errors: one tree, grouped by what the caller does about it.

::

    HoldfastError
    ├── ConflictError          another writer won: reload and decide
    │   ├── AlreadyExistsError   the object is there already: read it, compare, decide
    │   └── FencedError          this writer is dead: stop
    ├── CommitUnknownError     outcome unknown: read before retrying
    ├── NotFoundError          (also KeyError)
    ├── InvalidInputError      (also ValueError)
    ├── IncompatibleError      fingerprint, vnodes or format differ; the difference is listed
    ├── CorruptionError        bytes disagree with their digest or the spec: file, expected, actual
    ├── RefusedError           possible, but not safe unless it is asked for by name
    ├── StorageError           the environment: disk full, denied, unreachable; see `retryable`
    └── InternalError          an invariant broke: a bug

Invariants:
- Every instance has a stable, append-only `kind`; one kind never has two meanings.
- The message is: what happened, then `key=value` facts, then what to do.
- Errors cross process boundaries in Spark: each one survives pickling with all its facts.
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """The root. Carries a stable `kind`, the facts, and a remedy."""

    kind_default = "error"

    def __init__(
        self, what: str, *, kind: str | None = None, remedy: str | None = None, **facts: object
    ) -> None:
        """Build the error from what happened, the facts, and what to do about it."""
        super().__init__(what)
        self.what = what
        self.kind = kind or self.kind_default
        self.remedy = remedy
        self.facts = {key: value for key, value in facts.items() if value is not None}

    def __str__(self) -> str:
        """What happened, then facts, then the remedy."""
        parts = [self.what]
        if self.facts:
            parts.append(" ".join(f"{key}={value}" for key, value in self.facts.items()))
        if self.remedy:
            parts.append(self.remedy)
        return ". ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value: facts become text, since they may not unpickle elsewhere."""
        facts = {
            key: value if isinstance(value, (str, int, float, bool)) else str(value)
            for key, value in self.facts.items()
        }
        return _rebuild, (type(self), self.what, self.kind, self.remedy, facts)


def _rebuild(
    cls: type[HoldfastError], what: str, kind: str, remedy: str | None, facts: dict[str, Any]
) -> HoldfastError:
    error = cls.__new__(cls)
    HoldfastError.__init__(error, what, kind=kind, remedy=remedy, **facts)
    if isinstance(error, StorageError):
        error.retryable = bool(facts.get("retryable", False))
        error.took_effect = facts.get("took_effect")
    return error


class ConflictError(HoldfastError):
    """Another writer won: reload and decide."""

    kind_default = "conflict"


class AlreadyExistsError(ConflictError):
    """A put-if-absent found an object: read it, compare, decide."""

    kind_default = "already_exists"


class FencedError(ConflictError):
    """This writer has a successor and must stop."""

    kind_default = "fenced"


class CommitUnknownError(HoldfastError):
    """The commit may or may not have happened: read before retrying."""

    kind_default = "commit_unknown"


class NotFoundError(HoldfastError, KeyError):
    """Something that was named does not exist."""

    kind_default = "not_found"


class InvalidInputError(HoldfastError, ValueError):
    """The caller gave something that can never work."""

    kind_default = "invalid_input"


class IncompatibleError(HoldfastError):
    """Fingerprint, vnode count or format version differ; what differs is listed."""

    kind_default = "incompatible"


class CorruptionError(HoldfastError):
    """Bytes disagree with their digest or with the specification."""

    kind_default = "corrupt"


class RefusedError(HoldfastError):
    """The request is possible, but not safe unless it is asked for by name."""

    kind_default = "refused"


class StorageError(HoldfastError):
    """The environment failed: disk full, denied, unreachable.

    `retryable` says whether trying again may help. `took_effect` is True or False where
    that is known and None where it is not (a lost reply).
    """

    kind_default = "storage"

    def __init__(
        self,
        what: str,
        *,
        kind: str | None = None,
        remedy: str | None = None,
        retryable: bool = False,
        took_effect: bool | None = None,
        **facts: object,
    ) -> None:
        """Build the error; `retryable` and `took_effect` are also facts."""
        super().__init__(what, kind=kind, remedy=remedy, **facts)
        self.retryable = retryable
        self.took_effect = took_effect
        self.facts["retryable"] = retryable
        if took_effect is not None:
            self.facts["took_effect"] = took_effect


class InternalError(HoldfastError):
    """An invariant broke: a bug in Holdfast."""

    kind_default = "internal"


def invariant(condition: object, what: str, **facts: object) -> None:
    """Check something that must hold in production too, unlike `assert`."""
    if not condition:
        remedy = "this is a bug in Holdfast: please report it with this message"
        raise InternalError(what, kind=None, remedy=remedy, **facts)
