"""The guard: savepoints for plain Spark Structured Streaming queries."""

from holdfast.guard.attach import Attachment, attach, protect
from holdfast.guard.keeping import Shown, compare, gc, ls, pin, show, unpin
from holdfast.guard.live import derived_name
from holdfast.guard.restoring import Restored, clone, restore
from holdfast.guard.savepoint import Savepoint, save
from holdfast.guard.shelf import Listed, Shelf
from holdfast.guard.states import StoreCount, StoreDiff
from holdfast.guard.verifying import GuardReport, verify

__all__ = [
    "Attachment",
    "GuardReport",
    "Listed",
    "Restored",
    "Savepoint",
    "Shelf",
    "Shown",
    "StoreCount",
    "StoreDiff",
    "attach",
    "clone",
    "compare",
    "derived_name",
    "gc",
    "ls",
    "pin",
    "protect",
    "restore",
    "save",
    "show",
    "unpin",
    "verify",
]
