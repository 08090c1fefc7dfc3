"""Every verb in every bad circumstance: one exit-code table, one JSON document, no traceback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.cli.app import load, sections
from holdfast.guard import save
from holdfast.journal import Event, JournalWriter
from tests.helpers.cli_world import call, environment, standard
from tests.helpers.guard_golden import NAMES, on_disk

CODES = (0, 1, 2, 130)
ARGUMENTS = {
    "ls": ["{store}"],
    "show": ["{store}"],
    "verify": ["{store}"],
    "recover": ["--plan", "{store}"],
    "pin": ["{store}", "l"],
    "unpin": ["{store}", "l"],
    "delete": ["{store}", "epoch:0"],
    "gc": ["--dry-run", "{store}"],
    "rebuild-catalog": ["--dry-run", "{store}"],
    "restore": ["--dry-run", "--to", "epoch:1", "{store}"],
    "state": ["{store}", "totals"],
    "diff": ["{store}", "0", "1"],
    "fork": ["{store}", "latest", "new-{number}"],
    "sync": ["{store}", "{folder}/copy"],
    "doctor": ["{store}"],
    "warmup": ["--remove"],
    "run": ["{store}/pipe.py"],
    "submit": ["{store}/pipe.py", "--master", "spark://127.0.0.1:9"],
    "guard save": ["{ck}", "{points}"],
    "guard ls": ["{ck}", "{points}"],
    "guard show": ["{ck}", "{points}"],
    "guard verify": ["{ck}", "{points}"],
    "guard restore": ["{ck}", "{points}", "--into", "{folder}/r{number}"],
    "guard clone": ["{ck}", "{points}", "{folder}/c{number}"],
    "guard diff": ["{ck}", "{points}", "latest", "latest"],
    "guard pin": ["{ck}", "{points}", "p"],
    "guard unpin": ["{ck}", "{points}", "p"],
    "guard gc": ["--dry-run", "{ck}", "{points}"],
    "journal append": ["{journal}"],
    "journal tail": ["{journal}"],
    "journal query": ["{journal}"],
    "journal verify": ["{journal}"],
    "journal info": ["{journal}"],
    "journal release": ["{journal}", "nobody"],
    "upgrade": ["--dry-run", "{store}"],
}
BROKEN = {
    "no such user": "~nouser/x",
    "nowhere": "{folder}/no/where",
    "a file": "{folder}/file",
    "empty": "",
    "null byte": "a\0b",
    "no such scheme": "ftp://x/y",
    "a bad option": None,
}


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """One of everything."""
    folder = tmp_path_factory.mktemp("verbs")
    world = standard(folder / "root")
    on_disk(NAMES[0], folder / "ck")
    save(folder / "ck", folder / "points", "one")
    with JournalWriter(folder / "journal") as writer:
        writer.append([Event(entity="e", kind="k", payload=b"x")])
    (folder / "file").write_text("x")
    return {
        "store": world.address,
        "folder": str(folder),
        "ck": str(folder / "ck"),
        "points": str(folder / "points"),
        "journal": str(folder / "journal"),
    }


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """What a verb makes of a bad name, it makes where nobody keeps anything."""
    monkeypatch.chdir(tmp_path)


def _words(verb, facts, number=0):
    return [*verb.split(), *(a.format(**facts, number=number) for a in ARGUMENTS[verb])]


def _check(out, err, code, *, as_json):
    assert "Traceback" not in out + err, err
    assert "please report" not in out + err, err
    assert code in CODES, (code, err)
    if as_json and code in (2, 130):
        assert json.loads(out)["schema"] == "holdfast.error/1", out


def test_the_table_names_every_verb():
    """A new verb cannot be forgotten here."""
    names = {name for section in sections().values() for name in section}
    groups = {"guard", "journal"}
    inner = {f"{group} {name}" for group in groups for name in load(group).commands}
    assert set(ARGUMENTS) == (names - groups) | inner


@pytest.mark.parametrize("verb", ARGUMENTS)
@pytest.mark.parametrize("broken", BROKEN)
def test_bad_places_and_options(facts, verb, broken, monkeypatch):
    """Each argument in turn is something that cannot work: a message, a document, exit 1 or 2."""
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115
    words = _words(verb, facts)
    places = [i for i, a in enumerate(words) if a.startswith("/")]
    if broken == "a bad option":
        answer = call(*words, "--no-such-option", "--json")
        _check(answer.out, answer.err, answer.code, as_json=True)
        assert answer.code == 2
        return
    for place in places:
        bad = [*words]
        bad[place] = BROKEN[broken].format(**facts)
        answer = call(*bad, "--json")
        _check(answer.out, answer.err, answer.code, as_json=True)
        if answer.out:
            json.loads(answer.out)


@pytest.mark.parametrize("verb", ARGUMENTS)
@pytest.mark.parametrize("package", ["numpy", "pyarrow", "duckdb", "pyspark", "blake3", "obstore"])
def test_missing_packages(facts, verb, package):
    """Without a package a verb works, or says which extra of which distribution brings it."""
    if verb in ("warmup", "run") and package != "pyspark":
        pytest.skip("would start Spark")
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from holdfast.cli.main import main; sys.exit(main({[*_words(verb, facts, package), '--json']!r}))"
    )
    if (package, verb.split()[0]) not in NEEDED:
        pytest.skip("does not import it")
    done = _run([sys.executable, "-c", code])
    _check(done.stdout, done.stderr, done.returncode, as_json=True)
    if done.returncode == 2:
        assert "pip install 'holdfast-spark[" in json.loads(done.stdout)["remedy"]


NEEDED = {
    ("numpy", "journal"),
    ("numpy", "state"),
    ("numpy", "diff"),
    ("pyarrow", "state"),
    ("pyarrow", "journal"),
    ("duckdb", "state"),
    ("duckdb", "diff"),
    ("pyspark", "run"),
    ("blake3", "journal"),
}


def _run(words, **more):
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.run(
        words,
        text=True,
        timeout=120,
        check=False,
        env=environment(),
        stdin=subprocess.DEVNULL,
        **more,
    )


SOME = ["ls", "state", "verify", "recover", "guard ls", "journal tail", "journal info", "diff"]


@pytest.mark.parametrize("verb", SOME)
@pytest.mark.parametrize("stream", ["full", "closed", "both closed", "gone", "no stderr"])
def test_streams_that_cannot_be_written(facts, verb, stream):
    """Full or closed output is a problem that is said; a reader that has gone is none."""
    shell = " ".join([sys.executable, "-m", "holdfast", *_words(verb, facts), "--json"])
    where = {
        "full": ">/dev/full",
        "closed": ">&-",
        "both closed": ">&- 2>&-",
        "no stderr": "2>&-",
        "gone": "| true; exit ${PIPESTATUS[0]}",
    }[stream]
    done = _run(["bash", "-c", f"{shell} {where}"])
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == (0 if stream in ("gone", "no stderr") else 1), done.stderr
    if stream in ("full", "closed"):
        assert "standard output cannot be written" in done.stderr
    if stream == "no stderr":
        json.loads(done.stdout.splitlines()[0] if verb == "journal tail" else done.stdout)


@pytest.mark.parametrize("words", [["--help"], ["journal", "--help"], ["guard", "--help"], []])
def test_help_into_full_and_closed_output(words):
    """Help is output like any other."""
    for where in (">/dev/full", ">&-"):
        done = _run(["bash", "-c", " ".join([sys.executable, "-m", "holdfast", *words, where])])
        assert "Traceback" not in done.stderr
        assert done.returncode in (1, 2)


@pytest.mark.parametrize("seed", range(12))
def test_ctrl_c_at_any_moment_of_the_first_half_second(facts, seed):
    """Ctrl-C while it starts is exit 130 and one line, or the verb was done already."""
    chance = random.Random(seed)
    verb = chance.choice(SOME)
    code = "from holdfast_command import command; import sys; print('go', file=sys.stderr, flush=True); command()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *_words(verb, facts), "--json"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    process.stderr.readline()
    time.sleep(0.005 + chance.random() * 0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, (verb, err)
    assert process.returncode in (0, 130), (verb, err)
    if process.returncode == 130 and out:
        assert json.loads(out.splitlines()[-1])["kind"] == "interrupted"


@pytest.mark.parametrize(
    "option", ["timeout=1", "timeout=x", "nonsense=1", "connect_timeout=-1", "client_options=1"]
)
@pytest.mark.parametrize("verb", ["ls", "state", "doctor", "sync"])
def test_options_of_the_client(verb, option, monkeypatch):
    """A client library that panics is an error like any other."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    more = {"state": ["x"], "sync": ["memory://x"]}.get(verb, [])
    words = [sys.executable, "-m", "holdfast", verb, "s3://bucket/x", *more, "--option", option]
    words += ["--option", "max_retries=0", "--json"]
    if "timeout" in option and verb != "ls":
        pytest.skip("would wait for the network")
    try:
        done = _run(words)
    except subprocess.TimeoutExpired:
        pytest.skip("the client is still trying")
    _check(done.stdout, done.stderr, done.returncode, as_json=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("verb", [v for v in ARGUMENTS if v not in ("run", "warmup")])
def test_a_root_that_may_not_be_read(facts, verb, tmp_path_factory):
    """Without permission every verb says so: exit 1 or 2, the kind `denied` where it is the place."""
    folder = Path(facts["folder"])
    code = (
        "import os, sys\n"
        "from holdfast.cli.main import main\n"
        "import holdfast.cli.app, holdfast.cli.commands.guard, holdfast.cli.commands.journal\n"
        "os.chmod(sys.argv[1], 0)\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(main(sys.argv[2:]))"
    )
    mode = folder.stat().st_mode
    try:
        done = _run(
            [sys.executable, "-c", code, str(folder), *_words(verb, facts, "denied"), "--json"],
            cwd="/",
        )
    finally:
        folder.chmod(mode)
    _check(done.stdout, done.stderr, done.returncode, as_json=True)
    assert done.returncode in (1, 2), done.stdout
    json.loads(done.stdout)
