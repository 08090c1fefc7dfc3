"""The commands: JSON lines in, receipts and events out, exit codes, messages without tracebacks."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from holdfast.cli.commands.journal import journal as journal_app
from holdfast.journal import Receipt, check_receipt
from tests.helpers.journals import fill
from tests.helpers.paths import child_environment

runner = CliRunner()


def run(*args, text=None):
    return runner.invoke(journal_app, [str(a) for a in args], input=text)


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_append_reads_json_lines_and_prints_receipts_that_hold(root):
    """Every line is an event; every printed receipt can be checked."""
    text = "".join(
        json.dumps({"entity": f"e{i}", "kind": "k", "payload": {"n": i}}) + "\n" for i in range(7)
    )
    result = run("append", root, "--batch", 3, "--json", text=text)
    assert result.exit_code == 0, result.output
    receipts = [Receipt.from_json(line) for line in result.stdout.splitlines()]
    assert [r.count for r in receipts] == [3, 3, 1]
    for receipt in receipts:
        check_receipt(root, receipt)
    found = lines(run("tail", root, "-n", 2, "--json"))
    assert [(e["entity"], e["payload"]) for e in found] == [("e5", {"n": 5}), ("e6", {"n": 6})]


def test_events_with_and_without_ids_may_be_mixed_on_standard_input(root):
    """Lines that cannot share a batch get batches of their own, in order."""
    one = {"entity": "b", "kind": "k", "id": "00000000-0000-0000-0000-000000000001"}
    rows = [{"entity": "a", "kind": "k"}, one, {"entity": "c", "kind": "k"}]
    result = run("append", root, text="\n".join(json.dumps(row) for row in rows))
    assert result.exit_code == 0
    assert [e["entity"] for e in lines(run("tail", root, "--json"))] == ["a", "b", "c"]
    assert run("append", root, text=json.dumps(one)).exit_code == 0
    other = run("append", root, text=json.dumps({**one, "entity": "z"}))
    assert (other.exit_code, "id_reused" in other.stderr) == (1, True)
    assert len(lines(run("tail", root, "--json"))) == 3


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"entity":"a"}',
        '{"entity":"a","kind":"k","x":1}',
        '{"entity":1,"kind":"k"}',
        '{"entity":"a","kind":"k","id":"zz"}',
    ],
)
def test_a_bad_line_is_named_and_exits_2(root, line):
    """The message has the line's number and a remedy; no traceback."""
    result = run("append", root, text='{"entity":"a","kind":"k"}\n' + line)
    assert result.exit_code == 2
    assert "line: 2" in result.stderr
    assert "Traceback" not in result.output


def test_query_filters_and_limits(root):
    """Filters work as in the library, answers are JSON lines."""
    fill(root)
    assert {e["entity"] for e in lines(run("query", root, "--entity", "e3", "--json"))} == {"e3"}
    assert len(lines(run("query", root, "--kind", "k1", "--limit", 2, "--json"))) == 2
    found = lines(run("query", root, "--from-sequence", 3, "--to-sequence", 5, "--json"))
    assert [e["sequence"] for e in found] == [3, 4]
    one = "00000000-0000-0000-0000-00000000000a"
    assert [e["sequence"] for e in lines(run("query", root, "--id", one, "--json"))] == [9]
    assert len(lines(run("query", root, "--causes-of", one, "--json"))) == 10
    assert "e3" in run("query", root, "--entity", "e3").stdout
    assert run("query", root, "--id", "nonsense").exit_code == 2
    assert run("query", root, "--limit", "-1").exit_code == 2


def test_tail_with_a_cursor_shows_everything_once(root):
    """The cursor moves with what was printed."""
    fill(root, batches=3)
    assert len(lines(run("tail", root, "--cursor", "me", "--json"))) == 15
    assert run("tail", root, "--cursor", "me", "--json").stdout == ""
    assert run("tail", root, "--cursor", "../me").exit_code == 2
    result = run("tail", root, "--follow", "--timeout-ms", 1, "-n", 1, "--json")
    assert len(lines(result)) == 1


def test_verify_exits_1_and_names_the_place(root):
    """Good is 0; one flipped bit is 1 with file and offset, in text and JSON."""
    fill(root)
    assert run("verify", root).exit_code == 0
    assert lines(run("verify", root, "--deep", "--json"))[-1]["ok"] is True
    path = min((root / "segments").glob("*.seg"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    result = run("verify", root, "--json")
    assert result.exit_code == 1
    assert lines(result)[-1]["findings"][0]["path"] == str(path)
    assert f"{path}:128" in run("verify", root).stdout


def test_info_says_what_is_there(root):
    """Counts, sizes, holds and the open report."""
    fill(root)
    found = lines(run("info", root, "--json"))[0]
    assert (found["events"], found["visible"], found["open"]["reason"]) == (40, 40, "used")
    assert "journal_id" in run("info", root).stdout


@pytest.mark.parametrize("verb", ["tail", "query", "info", "verify"])
def test_read_verbs_on_nothing_exit_2_and_create_nothing(root, verb):
    """A missing journal is a message with a remedy, and stays missing."""
    result = run(verb, root)
    assert result.exit_code == (1 if verb == "verify" else 2)
    assert "no journal here" in result.output
    assert not root.exists()


def test_the_module_runs_as_a_program(root):
    """`python -m holdfast journal` works from standard input, a second writer is told who is first."""
    env = child_environment()
    command = [sys.executable, "-m", "holdfast", "journal"]
    first = subprocess.Popen(
        [*command, "append", root, "--batch", "1", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        text=True,
    )
    first.stdin.write('{"entity":"a","kind":"k"}\n')
    first.stdin.flush()
    second_line = first.stdin.write('{"entity":"a","kind":"k"}\n')
    assert second_line
    first.stdin.flush()
    assert json.loads(first.stdout.readline())["count"] == 1
    second = subprocess.run(
        [*command, "append", root], input="", capture_output=True, text=True, env=env, check=False
    )
    assert second.returncode == 1
    assert f"pid={first.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    first.stdin.close()
    assert first.wait(20) == 0
    first.stdout.close()
