"""The SQLite sink of the examples, loaded from where it lies: it is not installed here."""

from tests.helpers.examples import example

_MODULE = example("connectors/sqlite_sink/src/holdfast_sqlite/__init__.py")
SqliteTable, SqliteTableWriter = _MODULE.SqliteTable, _MODULE.SqliteTableWriter
