"""The guard: savepoints for plain Spark Structured Streaming queries.

Read first:
- `closure`: which files of Spark's checkpoint belong to a batch.
- `_save`, `_restore`, `_verify`: the three things that one does with a savepoint.
- `attach`: saving while a query runs.
- `spark_files`: Spark's own files, read without a JVM. Specification: spec/guard-v1.md.
"""

from holdfast.guard._restore import Restored, clone, restore
from holdfast.guard._save import Savepoint, save
from holdfast.guard._verify import GuardReport, verify
from holdfast.guard.admin import Shown, compare, gc, ls, pin, show, unpin
from holdfast.guard.attach import Attachment, attach, protect
from holdfast.guard.checkpoint_location import derived_name
from holdfast.guard.savepoints import Listed, Savepoints
from holdfast.guard.spark_files.state_inspect import StoreCount, StoreDiff

__all__ = [
    "Attachment",
    "GuardReport",
    "Listed",
    "Restored",
    "Savepoint",
    "Savepoints",
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
