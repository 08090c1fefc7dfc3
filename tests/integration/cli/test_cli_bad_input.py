"""Whatever is typed and however broken the store is: a message with a remedy, never a traceback."""

from __future__ import annotations

import shutil

import pytest

from tests.helpers.cli_world import World, call, damage, holdfast, snapshot, standard

ID = "0198c0de-0000-7000-8000-000000000000"


def check(answer, code, *words):
    """The exit code, a message, no traceback, and the words that must be in it."""
    text = answer.out + answer.err
    assert "Traceback" not in text, text
    assert answer.code == code, text
    for word in words:
        assert word in text, (word, text)


WRONG = {
    "wrong path": (["ls", "{root}/nowhere/at/all"], "does not exist", "try:"),
    "pipeline of a root that lacks it": (
        ["ls", "{root}/nope"],
        "no pipeline of that name",
        "orders",
    ),
    "named pipeline that is not there": (["ls", "{root}", "nope"], "no pipeline", "try:"),
    "a file instead of a root": (["ls", "{root}/orders/holdfast.json"], "not a directory", "try:"),
    "empty address": (["ls", ""], "empty"),
    "escaping name": (["ls", "{root}", "../up"], "not allowed", "try:"),
    "unknown scheme": (["ls", "ftp://host/x"], "unknown kind of store", "try:"),
    "secret in address": (["ls", "s3://user:pw@bucket/x"], "credentials", "try:"),
    "options for a path": (["ls", "{store}", "--option", "a=b"], "object stores", "try:"),
    "option without a value": (["ls", "{store}", "--option", "a"], "key=value", "try:"),
    "unknown id": (["show", "{store}", ID], "no such checkpoint", "holdfast ls"),
    "unknown label": (["show", "{store}", "nolabel"], "no such checkpoint", "holdfast ls"),
    "unknown epoch": (["show", "{store}", "epoch:99"], "no such checkpoint", "0..3"),
    "unknown number": (["show", "{store}", "99"], "no such checkpoint", "0..3"),
    "ambiguous start": (["show", "{store}", "{common}"], "more than one", "more digits"),
    "not a time": (["show", "{store}", "time:yesterday"], "not a time", "try:"),
    "before everything": (["show", "{store}", "1999-01-01"], "no checkpoint is that old"),
    "unknown operator": (["state", "{store}", "nope"], "no operator", "note,totals"),
    "bad sql": (
        ["state", "{store}", "totals", "--sql", "selec 1"],
        "cannot run the query",
        "state",
    ),
    "bad where": (["state", "{store}", "totals", "--where", "nope > 1"], "cannot run the query"),
    "two queries": (["state", "{store}", "totals", "--sql", "x", "--where", "y"], "together"),
    "unknown format": (["state", "{store}", "totals", "--to", "x.xlsx"], "unknown kind of file"),
    "file inside the store": (["state", "{store}", "totals", "--to", "{store}/x.csv"], "inside"),
    "rows of small state": (["diff", "{store}", "0", "1", "--operator", "note"], "keeps no rows"),
    "bad label": (["pin", "{store}", "a/b"], "not allowed", "try:"),
    "reserved label": (["pin", "{store}", "fork-x"], "kept for forks", "try:"),
    "unpin nothing": (["unpin", "{store}", "nope"], "no savepoint", "try:"),
    "choose no id": (["rebuild-catalog", "{store}", "--choose", "x"], "not a checkpoint id"),
    "restore to nothing": (["restore", "{store}", "--to", "nope"], "no such checkpoint"),
    "bad fork name": (["fork", "{store}", "latest", "a/b"], "not allowed"),
    "verify what": (["recover", "--plan", "--verify", "maybe", "{store}"], "auto", "try:"),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One healthy store for all wrong commands."""
    return standard(tmp_path_factory.mktemp("bad") / "root")


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "-"))
def test_wrong_usage_gets_a_message_and_exit_2(shared, case):
    """What the user can type differently is exit 2 with what is wrong; nothing is changed."""
    args, *words = WRONG[case]
    facts = {"root": shared.root, "store": shared.address, "common": shared.ids[0][:6]}
    args = [arg.format(**facts) for arg in args]
    before = snapshot(shared.root)
    check(call(*args), 2, *words)
    assert snapshot(shared.root) == before
    failed = call(*args, "--json")
    assert failed.code == 2
    assert failed.json["schema"] == "holdfast.error/1"
    assert failed.json["kind"]


@pytest.mark.parametrize(
    "args",
    [["--nope"], ["frobnicate"], ["ls"], ["gc", "x", "--retain", "1"], ["verify", "x", "-n"]],
)
def test_the_parser_complains_with_exit_2(args):
    """Unknown verbs, missing arguments and values out of range are exit 2, without a traceback."""
    check(holdfast(*args), 2)


def lose_header(home):
    damage(home / "holdfast.json", "remove")


def break_header(home):
    damage(home / "holdfast.json")


def lose_catalog(home):
    shutil.rmtree(home / "catalog")


def break_catalog(home):
    for path in (home / "catalog").iterdir():
        damage(path)


def gap_in_catalog(home):
    damage(sorted((home / "catalog").iterdir())[2], "remove")


def lose_manifests(home):
    for path in home.glob("checkpoints/*/manifest.json"):
        damage(path, "remove")


def garbage(home):
    for path in home.rglob("*.json"):
        path.write_bytes(b"\x00\xff{]")


def empty_files(home):
    for path in home.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")


def break_pins(home):
    (home / "pins").mkdir(exist_ok=True)
    (home / "pins" / "x.json").write_bytes(b"{}")


DAMAGES = [lose_header, break_header, lose_catalog, break_catalog, gap_in_catalog, lose_manifests,
           garbage, empty_files, break_pins]  # fmt: skip


@pytest.mark.parametrize("spoil", DAMAGES, ids=lambda spoil: spoil.__name__)
def test_no_verb_stumbles_over_a_damaged_store(shared, tmp_path, spoil):
    """Every verb on every kind of damage ends with 0, 1 or 2 and a message; none with a traceback,
    and none that reads changes the store."""
    root = tmp_path / "root"
    shutil.copytree(shared.root, root)
    spoil(root / "orders")
    store = f"{root}/orders"
    before = snapshot(root)
    reading = [
        ["ls", store], ["ls", root], ["show", store], ["verify", "--deep", store],
        ["recover", "--plan", store], ["state", store, "totals"], ["diff", store, "1", "2"],
        ["gc", "--dry-run", store], ["rebuild-catalog", "--dry-run", store],
        ["restore", "--dry-run", "--to", "1", store],
    ]  # fmt: skip
    codes = {}
    for args in reading:
        for more in ([], ["--json"]):
            answer = call(*args, *more)
            check(answer, answer.code)
            assert answer.code in (0, 1, 2)
            codes[args[0]] = answer.code
            assert answer.err.startswith("holdfast: ") or not answer.err
            assert "internal" not in answer.err.lower(), answer.err
    assert snapshot(root) == before
    assert codes["verify"] == 1
    for args in (["pin", store, "x1"], ["delete", store, "0"], ["gc", store, "--retain", "2"],
                 ["fork", store, "latest", "new"], ["sync", store, tmp_path / "dst"],
                 ["restore", "--to", "1", store], ["rebuild-catalog", store]):  # fmt: skip
        answer = call(*args)
        check(answer, answer.code)
        assert answer.code in (0, 1, 2)


def test_a_lost_catalog_is_rebuilt_by_the_verb_that_the_message_names(world):
    """`ls` refuses and names rebuild-catalog; afterwards everything is there again."""
    before = [row["checkpoint"] for row in call("ls", world.address, "--json").json["checkpoints"]]
    lose_catalog(world.root / "orders")
    check(call("ls", world.address), 1, "rebuild-catalog")
    dry = call("rebuild-catalog", "--dry-run", world.address, "--json").json
    assert [row["epoch"] for row in dry["take"]] == [0, 1, 2, 3]
    check(call("ls", world.address), 1, "rebuild-catalog")
    check(holdfast("rebuild-catalog", world.address), 0, "4 checkpoints")
    after = [row["checkpoint"] for row in call("ls", world.address, "--json").json["checkpoints"]]
    assert after == before
    check(call("rebuild-catalog", world.address), 1, "whole", "--force")


def test_an_unreachable_object_store_is_one_sentence(tmp_path):
    """A dead endpoint is exit 1 with what to check; no credentials, no signed address, no hang."""
    env = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "topsecret",
           "AWS_SECRET_ACCESS_KEY": "topsecret", "AWS_REGION": "us-east-1"}  # fmt: skip
    answer = holdfast("ls", "s3://bucket/x", "--option", "max_retries=0", env=env)
    check(answer, 1 if answer.code == 1 else 2, "try:")
    assert "topsecret" not in answer.out + answer.err


def test_a_missing_bucket_is_named(s3_env):
    """A bucket that does not exist is said to be missing, with exit 1."""
    check(holdfast("ls", "s3://holdfast-no-such-bucket/x", env=s3_env), 1, "bucket")


def test_an_empty_pipeline_is_not_an_error(tmp_path):
    """A pipeline that was opened and never committed lists as empty, exit 0."""
    world = World(tmp_path / "root")
    world.open()
    world.close()
    check(call("ls", world.address), 0, "nothing was committed yet")
    check(call("recover", "--plan", world.address), 0, "fresh")
    check(call("show", world.address), 2, "no such checkpoint")
    check(call("gc", world.address), 1, "no checkpoint yet")


@pytest.mark.parametrize(
    "words",
    [
        ("state", "{store}", "\udce9"),
        ("run", "\udce9.py"),
        ("ls", "{store}", "--option", "\udce9"),
        ("warmup", "\udce9"),
        ("doctor", "\udce9/x"),
    ],
    ids=lambda words: words[0],
)
def test_bytes_that_are_no_text_are_one_document_of_json(world, words, tmp_path, monkeypatch):
    """A name in another encoding is shown with U+FFFD; the error is the one without --json."""
    monkeypatch.chdir(tmp_path)
    answer = call(*(word.replace("{store}", world.address) for word in words), "--json")
    assert "internal" not in answer.out + answer.err
    assert answer.code in (0, 1, 2)
    assert answer.json["schema"].startswith("holdfast.")
