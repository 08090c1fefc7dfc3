"""The journal: an embedded, durable, hash-chained event log on local disk.

Read first:
- `writer`: opening, appending, closing; its invariants are the promises to users.
- `group_commit`: how producers share one fsync.
- `log_writer`: frames into segments, and what poisons a writer.
- `open`: which tail is cut, and which is damage.
- `reader`, `query`, `splits`: reading, in any process.
- `format`: the bytes. Specification: spec/journal-v1.md.
"""

from holdfast.journal.batch import EventIds, RandomEventIds, SeededEventIds
from holdfast.journal.files import JournalFiles
from holdfast.journal.group_commit import Ticket
from holdfast.journal.maintenance import HoldStore, TruncateReport
from holdfast.journal.proof import (
    EventProof,
    check_event,
    check_receipt,
    prove_event,
)
from holdfast.journal.query import JournalView, Query, QueryResult
from holdfast.journal.reader import Cursor, JournalReader
from holdfast.journal.splits import JournalSplit, plan_end, plan_splits, read_split
from holdfast.journal.types import (
    Durability,
    Event,
    JournalSettings,
    OpenPath,
    OpenReport,
    Position,
    Receipt,
)
from holdfast.journal.verify import JournalFinding, JournalVerifyReport, verify_journal
from holdfast.journal.writer import JournalWriter

__all__ = [
    "Cursor",
    "Durability",
    "Event",
    "EventIds",
    "EventProof",
    "HoldStore",
    "JournalFiles",
    "JournalFinding",
    "JournalReader",
    "JournalSettings",
    "JournalSplit",
    "JournalVerifyReport",
    "JournalView",
    "JournalWriter",
    "OpenPath",
    "OpenReport",
    "Position",
    "Query",
    "QueryResult",
    "RandomEventIds",
    "Receipt",
    "SeededEventIds",
    "Ticket",
    "TruncateReport",
    "check_event",
    "check_receipt",
    "plan_end",
    "plan_splits",
    "prove_event",
    "read_split",
    "verify_journal",
]
