"""The journal: an embedded, durable, hash-chained event log on local disk."""

from holdfast.journal.batch import EventIds, RandomEventIds, SeededEventIds
from holdfast.journal.files import Files
from holdfast.journal.model import (
    Durability,
    Event,
    JournalSettings,
    OpenPath,
    OpenReport,
    Position,
    Receipt,
)
from holdfast.journal.query import Query, QueryResult, View
from holdfast.journal.reader import Cursor, JournalReader
from holdfast.journal.slices import Slice, plan_end, plan_slices, read_slice
from holdfast.journal.writer import JournalWriter
