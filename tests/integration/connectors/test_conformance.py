"""Every connector that ships, and those of the examples, pass the suite that ships."""

from __future__ import annotations

from holdfast.testing.connectors import SinkSuite, SourceSuite
from tests.helpers import connector_rigs as rigs


class TestFiles(SourceSuite):
    rig = rigs.FilesRig


class TestGenerator(SourceSuite):
    rig = rigs.GeneratorRig


class TestJournal(SourceSuite):
    rig = rigs.JournalRig


class TestLines(SourceSuite):
    rig = rigs.LinesRig


class TestRest(SourceSuite):
    rig = rigs.RestRig


class TestParquet(SinkSuite):
    rig = rigs.ParquetRig


class TestParquetUpsert(SinkSuite):
    rig = rigs.UpsertRig


class TestJournalSink(SinkSuite):
    rig = rigs.JournalSinkRig


class TestSqlite(SinkSuite):
    rig = rigs.SqliteRig
