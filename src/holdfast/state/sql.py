"""DuckDB for queries of a user, closed to everything but the rows that it is given.

Invariants:
- A query reads the registered rows and nothing else: no file, no address, no Python variable, no
  extension. The file of `--to` is the only path that DuckDB may open, and only for writing it.
- One statement, and one that only reads. Statements that write are refused wherever they stand,
  inside a common table expression too; so is every table function that is not on a short list.
- Settings are locked before the query is run; memory and spilled bytes are bounded.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.ids import RandomIds
from holdfast.storage.local.disk import current_disk

if TYPE_CHECKING:
    import pyarrow as pa

MEMORY_MAX = "2GB"
SPILL_MAX = "64GB"
SQL_BYTES_MAX = 1 << 20
_BATCH_ROWS = 100_000
_NODES = ("SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE")
_TABLE_FUNCTIONS = frozenset(
    ("range", "generate_series", "unnest", "repeat", "repeat_row", "json_each", "json_tree")
)
_LOCKED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}


class Database:
    """One connection, and errors in our words."""

    def __init__(self, connection: Any, module: Any, target: str | None) -> None:
        """Use `database`."""
        self.connection = connection
        self._module = module
        self._target = target

    def run(self, sql: str) -> Any:
        """Execute a statement of ours; an error of the store stays what it is."""
        try:
            return self.connection.execute(sql)
        except self._module.Error as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> HoldfastError:
        if isinstance(error, self._module.InterruptException):
            raise KeyboardInterrupt from error
        return InvalidInputError(
            "DuckDB cannot run the query",
            kind="bad_query",
            reason=" ".join(str(error).split())[:400],
            remedy="the rows are in the table `state`; DESCRIBE state shows its columns",
        )

    # What a user wrote

    def checked(self, sql: str) -> str:
        """A query that only reads, as one statement without what follows it; else refused."""
        if len(sql) > SQL_BYTES_MAX:
            raise _refused("the query is too long", characters=len(sql))
        try:
            statements = self.connection.extract_statements(sql)
        except self._module.Error as error:
            raise self._translate(error) from error
        if len(statements) != 1:
            raise _refused("give exactly one query", statements=len(statements))
        kind = statements[0].type.name
        if kind != "SELECT":
            raise _refused("only queries are run here", statement=kind)
        text = str(statements[0].query).strip().rstrip(";")
        self._check_parts(text)
        return text

    def _check_parts(self, sql: str) -> None:
        """Look at every part of the query as DuckDB has parsed it."""
        try:
            raw = self.connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()[0][0]
        except self._module.Error as error:
            raise self._translate(error) from error
        tree = msgspec.json.decode(raw)
        if tree.get("error"):
            raise _refused("the query cannot be checked", reason=tree.get("error_message"))
        waiting: list[Any] = [tree]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                _check_part(part)
                waiting.extend(part.values())
            elif isinstance(part, list):
                waiting.extend(part)

    def condition(self, where: str) -> str:
        """The query for `--where`: one condition, which cannot leave its parentheses."""
        depth = least = 0
        signs = self._signs(where)
        for sign in signs:
            depth += (sign == "(") - (sign == ")")
            least = min(least, depth)
        if depth or least or ";" in signs or not where.strip():
            raise _refused("--where takes one condition", condition=where[:100])
        return self.checked(f"SELECT * FROM state WHERE (\n{where}\n)")  # noqa: S608

    def _signs(self, text: str) -> list[str]:
        """Parentheses and semicolons of a text that are neither quoted nor in a comment."""
        tokens = self._module.tokenize(text)
        data = text.encode()
        ends = [*(start for start, _ in tokens), len(data)][1:]
        return [
            sign
            for (start, kind), end in zip(tokens, ends, strict=True)
            if kind == self._module.token_type.operator
            for sign in data[start:end].decode(errors="replace")
            if sign in "();"
        ]

    # Answers

    def fetch(
        self, query: str, limit: int | None
    ) -> tuple[list[tuple[str, str]], list[list[Any]], bool]:
        """Columns, rows, and whether there are more: of a checked query."""
        bounded = query
        if limit is not None:
            bounded = f"SELECT * FROM (\n{query}\n) LIMIT {limit + 1}"  # noqa: S608
        try:
            result = self.run(bounded)
            columns = [(str(each[0]), str(each[1])) for each in result.description or ()]
            found = result.fetchall() if limit is None else result.fetchmany(limit + 1)
        except self._module.Error as error:
            raise self._translate(error) from error
        more = limit is not None and len(found) > limit
        return columns, [list(row) for row in found[:limit]], more

    def write(self, query: str, to: str, kind: str) -> int:
        """Write the rows of a checked query to the file; returns how many."""
        partial = self._target or ""
        try:
            if kind == "arrow":
                written = self._write_arrow(query, partial)
            else:
                options = "FORMAT parquet" if kind == "parquet" else "FORMAT csv, HEADER"
                place = partial.replace("'", "''")
                counted = self.run(f"COPY (\n{query}\n) TO '{place}' ({options})").fetchall()
                written = int(counted[0][0])
            current_disk().rename(partial, to)
        except OSError as error:
            raise InvalidInputError(
                "the file cannot be written", kind="cannot_write", file=to, reason=error.strerror
            ) from error
        finally:
            if os.path.exists(partial):
                os.unlink(partial)
        return written

    def _write_arrow(self, query: str, path: str) -> int:
        import pyarrow as pa

        reader = self.stream(query)
        written = 0
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, reader.schema) as out:
            for batch in reader:
                out.write_batch(batch)
                written += batch.num_rows
        return written

    def stream(self, query: str) -> pa.RecordBatchReader:
        """The rows as Arrow batches, computed while they are read."""
        try:
            relation = self.connection.sql(query)
            fetch = getattr(relation, "to_arrow_reader", None) or relation.fetch_record_batch
            reader: pa.RecordBatchReader = fetch(_BATCH_ROWS)
        except self._module.Error as error:
            raise self._translate(error) from error
        return reader


def _check_part(part: dict[str, Any]) -> None:
    kind = str(part.get("type", ""))
    if kind.endswith("_NODE") and kind not in _NODES:
        raise _refused("only queries are run here", statement=kind.removesuffix("_NODE"))
    if kind == "TABLE_FUNCTION":
        name = str((part.get("function") or {}).get("function_name", ""))
        if name.lower() not in _TABLE_FUNCTIONS:
            raise _refused("the query may read only the rows of the operator", function=name)


def _refused(what: str, **facts: object) -> InvalidInputError:
    return InvalidInputError(
        what,
        kind="query_refused",
        **facts,
        remedy="give one SELECT over the table `state`; --to FILE writes its result",
    )


@contextmanager
def database(to: str | None = None) -> Iterator[Database]:
    """DuckDB in memory, with limits and a place to spill to; `to` is the file to be written."""
    try:
        import duckdb
    except ImportError as error:
        raise InvalidInputError(
            "queries over state need DuckDB",
            kind="missing_extra",
            remedy="pip install 'holdfast-spark[sql]'",
        ) from error
    target = None if to is None else f"{os.path.abspath(to)}.{RandomIds().token()}.partial"
    with tempfile.TemporaryDirectory(prefix="holdfast-sql-") as spill:
        connection = duckdb.connect(":memory:")
        try:
            connection.execute(f"SET memory_limit='{MEMORY_MAX}'")
            connection.execute(f"SET temp_directory='{spill}'")
            connection.execute(f"SET max_temp_directory_size='{SPILL_MAX}'")
            connection.execute("SET TimeZone='UTC'")
            if target is not None:
                path = target.replace("'", "''")
                connection.execute(f"SET allowed_paths=['{path}']")
            for name, value in _LOCKED.items():
                connection.execute(f"SET {name}={value}")
            yield Database(connection, duckdb, target)
        finally:
            connection.close()
