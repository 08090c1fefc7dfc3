"""Failpoints: named places inside the protocols, where a test can let the process die.

`FAILPOINTS` lists every name; a tidy test compares it with the calls in the source, and the crash
matrix fails for a failpoint that no test has reached. An idle one costs one attribute look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.errors import invariant

FAILPOINTS = frozenset(
    {
        "cleanup.before_delete",
        "cleanup.after_delete",
        "commit.before_manifest",
        "commit.after_manifest",
        "commit.after_barrier",
        "commit.after_record",
        "commit.after_hint",
        "compact.before_base",
        "compact.after_base",
        "compact.after_first_delete",
        "delete.before_record",
        "delete.after_record",
        "delete.after_sweep",
        "gc.before_record",
        "gc.after_record",
        "gc.after_first_delete",
        "gc.after_sweep",
        "open.before_header",
        "open.after_header",
        "open.before_record",
        "open.after_record",
        "outcome.before_record",
        "outcome.after_record",
        "pin.before_record",
        "pin.after_record",
        "rebuild.before_record",
        "rebuild.after_record",
        "epoch.after_commit",
        "epoch.after_draft",
        "epoch.after_execute",
        "epoch.after_plan",
        "epoch.after_publish",
        "fill.after_execute",
        "upgrade.after_header",
        "upgrade.before_base",
        "upgrade.before_header",
        "fold.after_attempts",
        "fold.after_directory",
        "fold.after_exchange",
        "fold.after_swap",
        "fold.after_tree",
        "output.after_attempts",
        "output.after_bucket",
        "output.after_clear",
        "output.after_first_delete",
        "output.after_mark",
        "output.after_quarantine",
        "output.after_record",
        "output.after_redrive",
        "output.after_retract",
        "output.after_rows",
        "output.after_version",
        "kafka.after_commit",
        "kafka.after_send",
        "kafka.before_commit",
        "unpin.before_delete",
        "unpin.after_delete",
        "journal_append.after_publish",
        "journal_append.after_sync",
        "journal_append.after_write",
        "journal_append.before_write",
        "journal_compact.after_first_delete",
        "journal_compact.after_rename",
        "journal_open.after_cut",
        "journal_open.after_sync",
        "journal_replace.after_rename",
        "journal_replace.after_write",
        "journal_replace.before_rename",
        "journal_roll.after_footer_sync",
        "journal_roll.after_footer_write",
        "journal_roll.before_footer",
        "journal_truncate.after_first_delete",
        "journal_truncate.after_meta",
    }
)

_handler: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Let the installed handler see that the protocol stands here."""
    if _handler is not None:
        invariant(name in FAILPOINTS, "failpoint is not registered", point=name)
        _handler(name)


@contextmanager
def failpoint_handler(handler: Callable[[str], None]) -> Iterator[None]:
    """Let `handler` see every failpoint that is reached inside the context."""
    global _handler  # noqa: PLW0603 - one hook for the process; tests install it, nobody else
    before, _handler = _handler, handler
    try:
        yield
    finally:
        _handler = before
