"""The journal: an embedded, durable, hash-chained event log on local disk."""

from holdfast.journal.batch import EventIds, RandomEventIds, SeededEventIds
from holdfast.journal.files import Files
from holdfast.journal.group_commit import Ticket
from holdfast.journal.maintenance import HoldStore, TruncateReport
from holdfast.journal.proof import (
    EventProof,
    check_event,
    check_receipt,
    prove_event,
)
from holdfast.journal.query import Query, QueryResult, View
from holdfast.journal.reader import Cursor, JournalReader
from holdfast.journal.splits import Slice, plan_end, plan_slices, read_slice
from holdfast.journal.types import (
    Durability,
    Event,
    JournalSettings,
    OpenPath,
    OpenReport,
    Position,
    Receipt,
)
from holdfast.journal.verify import Finding, VerifyReport, verify_journal
from holdfast.journal.writer import JournalWriter

__all__ = [
    "Cursor",
    "Durability",
    "Event",
    "EventIds",
    "EventProof",
    "Files",
    "Finding",
    "HoldStore",
    "JournalReader",
    "JournalSettings",
    "JournalWriter",
    "OpenPath",
    "OpenReport",
    "Position",
    "Query",
    "QueryResult",
    "RandomEventIds",
    "Receipt",
    "SeededEventIds",
    "Slice",
    "Ticket",
    "TruncateReport",
    "VerifyReport",
    "View",
    "check_event",
    "check_receipt",
    "plan_end",
    "plan_slices",
    "prove_event",
    "read_slice",
    "verify_journal",
]
