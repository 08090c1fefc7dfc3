"""A query over state reads the rows it was given: no file, no setting, no second statement."""

from __future__ import annotations

import os

import pytest

from tests.helpers.cli_world import call, snapshot, standard

QUERIES = {
    "copy out": "COPY (SELECT 1) TO '{file}'",
    "copy over the catalog": "COPY (SELECT 1) TO '{record}'",
    "copy in a with": "WITH a AS (COPY (SELECT 1) TO '{file}') SELECT * FROM a",
    "insert in a with": "WITH a AS (INSERT INTO state VALUES (1) RETURNING *) SELECT * FROM a",
    "delete in a with": "WITH a AS (DELETE FROM state RETURNING *) SELECT * FROM a",
    "nested copy": "SELECT * FROM (WITH a AS (COPY (SELECT 1) TO '{file}') SELECT * FROM a)",
    "two statements": "SELECT 1; COPY (SELECT 1) TO '{file}'",
    "two queries": "SELECT 1; SELECT 2",
    "attach": "ATTACH '{file}' AS other",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "force install": "FORCE INSTALL httpfs FROM 'http://127.0.0.1:1'",
    "pragma": "PRAGMA database_list",
    "call": "CALL pragma_version()",
    "profile to a file": "PRAGMA profiling_output='{file}'",
    "set": "SET enable_external_access=true",
    "reset": "RESET lock_configuration",
    "use": "USE memory",
    "export": "EXPORT DATABASE '{folder}'",
    "import": "IMPORT DATABASE '{folder}'",
    "create": "CREATE TABLE t AS SELECT 1",
    "create view": "CREATE OR REPLACE VIEW state AS SELECT 1",
    "create macro": "CREATE MACRO m() AS TABLE SELECT 1",
    "create secret": "CREATE PERSISTENT SECRET s (TYPE s3)",
    "insert": "INSERT INTO state VALUES (1)",
    "update": "UPDATE state SET total = 1",
    "delete": "DELETE FROM state",
    "drop": "DROP VIEW state",
    "alter": "ALTER VIEW state RENAME TO x",
    "comment": "COMMENT ON VIEW state IS 'x'",
    "merge": "MERGE INTO state USING state s ON true WHEN MATCHED THEN DELETE",
    "prepare": "PREPARE p AS SELECT 1",
    "execute": "EXECUTE p",
    "transaction": "BEGIN",
    "vacuum": "VACUUM",
    "checkpoint": "CHECKPOINT",
    "explain analyze": "EXPLAIN ANALYZE SELECT 1",
    "read text": "SELECT * FROM read_text('{secret}')",
    "read text in a subquery": "SELECT (SELECT content FROM read_text('{secret}'))",
    "read text in a condition": "SELECT 1 WHERE EXISTS (SELECT 1 FROM read_text('{secret}'))",
    "read text by another name": "SELECT * FROM ReAd_TeXt('{secret}')",
    "read text by schema": "SELECT * FROM main.read_text('{secret}')",
    "read text described": "DESCRIBE SELECT * FROM read_text('{secret}')",
    "read blob": "SELECT * FROM read_blob('{secret}')",
    "read csv": "SELECT * FROM read_csv('{secret}')",
    "read json": "SELECT * FROM read_json('{secret}')",
    "read parquet": "SELECT * FROM read_parquet('{secret}')",
    "read a database": "SELECT * FROM read_duckdb('{secret}')",
    "sniff": "SELECT * FROM sniff_csv('{secret}')",
    "glob": "SELECT * FROM glob('{folder}/*')",
    "a file as a table": "SELECT * FROM '{secret}'",
    "a file described": "DESCRIBE '{secret}'",
    "a file summarised": "SUMMARIZE '{secret}'",
    "standard input": "SELECT * FROM read_csv('/dev/stdin')",
    "an address": "SELECT * FROM read_blob('http://127.0.0.1:1/x')",
    "log to a file": "SELECT * FROM enable_logging(storage='file', storage_path='{folder}')",
    "query in a function": "SELECT * FROM query('SELECT * FROM read_text(''{secret}'')')",
    "table by name": "SELECT * FROM query_table('{secret}')",
    "serialised": "SELECT * FROM json_execute_serialized_sql('{{}}')",
    "parquet metadata": "SELECT * FROM parquet_metadata('{secret}')",
    "secrets": "SELECT * FROM duckdb_secrets()",
    "a function that crashes": "SELECT * FROM summary(state)",
    "raw pointers": "SELECT * FROM arrow_scan(1, 2, 3)",
    "a Python variable": "SELECT * FROM standard",
    "nothing": "",
    "blanks": "  ;  ",
    "a comment": "-- nothing",
    "half a string": "SELECT 'x",
    "a long one": "SELECT 1" + " " * (1 << 20),
    "very deep": "SELECT " + "(" * 3_000 + "1" + ")" * 3_000,
}
CONDITIONS = {
    "another statement": "1=1); COPY (SELECT 1) TO '{file}'; SELECT (1",
    "a union": "1=1) UNION ALL SELECT 1, content, 2 FROM read_text('{secret}') WHERE (1=1",
    "a union of rows": "1=1) UNION ALL SELECT * FROM state WHERE (1=1",
    "a comment": "1=1) --",
    "an open comment": "1=1 /*",
    "a semicolon": "1=1;",
    "a limit": "1=1) LIMIT (1",
    "a subquery that reads": "EXISTS (SELECT 1 FROM read_text('{secret}'))",
    "a dollar quote": "1=1) OR $$ ( $$ = ('",
    "nothing": "",
    "a comment alone": "-- x",
}
GOOD = {
    "SELECT count(*) FROM state": 21,
    "SELECT count(*) FROM state;": 21,
    "WITH a AS (SELECT * FROM state) SELECT count(*) FROM a -- all": 21,
    "FROM state SELECT count(*)": 21,
    "SELECT sum(range) FROM range(4)": 6,
    "SELECT count(*) FROM (SELECT unnest([1, 2]) UNION ALL SELECT 3)": 3,
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("closed")
    (folder / "secret.csv").write_text("a\ns3cret\n")
    return standard(folder / "root"), folder


def _asked(shared, option, text, *more):
    world, folder = shared
    record = max((world.root / world.name / "catalog").glob("*"))
    facts = {
        "file": folder / "out.csv",
        "folder": folder,
        "record": record,
        "secret": folder / "secret.csv",
    }
    before = snapshot(folder)
    answer = call("state", world.address, "totals", option, text.format(**facts), *more)
    assert snapshot(folder) == before, "something was written"
    assert not os.path.exists(folder / "out.csv")
    assert "s3cret" not in answer.out + answer.err
    assert "Traceback" not in answer.out + answer.err
    assert answer.code == 2, answer.out + answer.err
    return answer


@pytest.mark.parametrize("case", QUERIES)
def test_a_query_cannot_write_or_read_outside(shared, case):
    """Whatever the query says, the store and the files next to it stay byte for byte."""
    answer = _asked(shared, "--sql", QUERIES[case], "--json")
    assert answer.json["kind"] in ("query_refused", "bad_query")
    if " in a with" in case or case.startswith("read "):
        assert answer.json["kind"] == "query_refused", "refused before DuckDB has run it"


@pytest.mark.parametrize("case", [c for c in QUERIES if c.startswith(("copy", "read", "a file"))])
def test_the_file_to_be_written_opens_no_other(shared, case, tmp_path):
    """With --to one path is open for writing, and the query itself can use none."""
    _asked(shared, "--sql", QUERIES[case], "--to", str(tmp_path / "x.csv"))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("case", CONDITIONS)
def test_a_condition_cannot_leave_its_parentheses(shared, case):
    """`--where` is one condition; what closes the parenthesis early or adds a statement is refused."""
    _asked(shared, "--where", CONDITIONS[case])


@pytest.mark.parametrize("query", GOOD)
def test_what_only_reads_the_rows_is_answered(shared, query):
    """Queries with common table expressions, comments and listed functions work."""
    answer = call("state", shared[0].address, "totals", "--sql", query, "--json")
    assert answer.json["rows"] == [[GOOD[query]]], answer.err


@pytest.mark.parametrize(
    "condition",
    [
        "total > 40",
        "(total) > (40) -- more",
        "customer <> ')('",
        "total > (SELECT avg(total) FROM state) + 30",
    ],
)
def test_a_condition_may_hold_parentheses_strings_and_comments(shared, condition):
    """Quoted parentheses and comments are no reason to refuse."""
    assert call("state", shared[0].address, "totals", "--where", condition).code == 0


@pytest.mark.parametrize("kind", ["parquet", "csv", "arrow"])
def test_to_writes_the_rows_of_a_query(shared, tmp_path, kind):
    """The closed database still writes the one file that was asked for."""
    import duckdb
    import pyarrow as pa

    file = tmp_path / f"it's.{kind}"
    answer = call(
        "state",
        shared[0].address,
        "totals",
        "--sql",
        "SELECT customer, total FROM state",
        "--to",
        file,
        "--json",
    )
    assert answer.json["rows_written"] == 21, answer.err
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    if kind == "arrow":
        rows = pa.ipc.open_file(file).read_all()
    else:
        name = str(file).replace("'", "''")
        rows = duckdb.sql(f"SELECT * FROM read_{kind}('{name}')").to_arrow_table()
    assert len(rows) == 21
    assert rows.column_names == ["customer", "total"]


def test_a_file_is_never_written_into_any_store(shared, tmp_path):
    """--to inside another pipeline, by a link or by `..`, is refused as well."""
    world, folder = shared
    other = standard(tmp_path / "other")
    link = tmp_path / "link"
    link.symlink_to(other.root / other.name / "checkpoints")
    before = snapshot(tmp_path)
    for file in (
        other.root / other.name / "x.csv",
        link / "x.csv",
        world.root / "orders" / ".." / "orders" / "x.csv",
    ):
        for args in (
            ["state", world.address, "totals"],
            ["diff", world.address, "0", "1", "--operator", "totals"],
        ):
            answer = call(*args, "--to", file)
            assert answer.code == 2, answer.err
            assert "inside the store" in answer.err
    assert snapshot(tmp_path) == before
