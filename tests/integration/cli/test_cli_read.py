"""Verbs that only read, against what the library and a dict say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import holdfast as hf
from holdfast.cli.commands.diff import Difference
from holdfast.cli.commands.ls import Listing
from holdfast.cli.commands.recover import Recovery
from holdfast.cli.commands.show import CheckpointView
from holdfast.cli.commands.state import StateRows
from holdfast.cli.commands.verify import Verification
from tests.helpers.cli_world import (
    ANSI,
    World,
    call,
    damage,
    environment,
    holdfast,
    snapshot,
    standard,
)


def test_ls_on_disk_says_what_the_library_says(world):
    """`ls --json` is the library's list with footprints, sink status and health; exit 0."""
    answer = holdfast("ls", world.address, "--json")
    assert answer.code == 0, answer.err
    listing = msgspec.convert(answer.json, Listing, strict=True)
    reader = world.reader
    expected = [(s.checkpoint, s.epoch, s.rows, s.keys, s.bytes_new) for s in reader.list()]
    shown = [(r.checkpoint, r.epoch, r.rows, r.keys, r.bytes_new) for r in listing.checkpoints]
    assert shown == expected
    assert [r.bytes_exclusive for r in listing.checkpoints] == [
        f.exclusive for f in hf.checkpoint.footprints(reader)
    ]
    assert {r.status for r in listing.checkpoints} == {"committed"}
    assert {r.health for r in listing.checkpoints} == {"ok"}
    assert listing.total == len(expected)


def test_every_read_verb_works_on_s3(s3_world, s3_env, s3_server):
    """On S3 each read verb exits 0 and agrees with the library; options do what AWS_* does."""
    address = s3_world.address
    ls = holdfast("ls", s3_world.root, "--json", env=s3_env)
    assert ls.code == 0, ls.err
    assert [r["checkpoint"] for r in ls.json["checkpoints"]] == s3_world.ids[::-1]
    given = [f"endpoint={s3_server}", "region=us-east-1", "access_key_id=test",
             "secret_access_key=test", "allow_http=true"]  # fmt: skip
    options = [word for pair in given for word in ("--option", pair)]
    show = holdfast("show", address, "epoch:1", "--json", *options)
    assert show.code == 0, show.err
    assert show.json["checkpoint"] == s3_world.ids[1]
    assert holdfast("verify", "--deep", address, env=s3_env).code == 0
    plan = holdfast("recover", "--plan", address, "--json", env=s3_env)
    assert plan.json["checkpoint"] == s3_world.ids[-1]
    state = holdfast("state", address, "totals", "--sql", "select sum(total) t from state", "--json",
                     env=s3_env)  # fmt: skip
    truth = s3_world.truth[s3_world.ids[-1]]
    assert int(state.json["rows"][0][0]) == sum(total for total, _ in truth.values()), state.err


def test_damage_on_s3_is_found_and_named(s3_world, s3_env):
    """A changed object on S3 fails a deep check that names it, with exit 1."""
    storage = s3_world.storage
    path = next(e.path for e in storage.list("orders/checkpoints") if e.path.endswith(".snap"))
    data = bytearray(storage.get(path))
    data[40] ^= 1
    storage.put(path, bytes(data))
    answer = holdfast("verify", "--deep", s3_world.address, env=s3_env)
    assert answer.code == 1
    assert path in answer.out.replace("\n  ", "")


def test_tables_fit_eighty_columns_and_have_no_colours_in_a_pipe(world):
    """Whatever is printed to a pipe has no escape codes and no line beyond column 80."""
    world.grow({"a" * 60: 1}, label="a-label-that-is-much-longer-than-a-column-should-ever-be")
    for args in (
        ["ls", world.address], ["show", world.address], ["verify", "--deep", world.address],
        ["recover", "--plan", world.address], ["state", world.address],
        ["state", world.address, "totals"], ["diff", world.address, "0", "latest",
         "--operator", "totals"], ["gc", "--dry-run", world.address],
        ["restore", "--dry-run", "--to", "1", world.address], ["--help"], ["state", "--help"],
        ["doctor", world.root],
    ):  # fmt: skip
        answer = call(*args)
        text = answer.out + answer.err
        assert answer.code in (0, 1), (args, text)
        assert not ANSI.search(text), args
        long = [  # a path is never broken, so that it can be found
            each for each in text.splitlines() if len(each) > 80 and str(world.root) not in each
        ]
        assert not long, (args, long)


def test_colours_appear_on_a_terminal_and_no_color_turns_them_off(world):
    """On a pseudo-terminal `ls` is coloured; with NO_COLOR set it is not."""
    script = shutil.which("script")
    if script is None:
        pytest.skip("needs script(1) for a terminal")
    line = f"{sys.executable} -m holdfast ls {world.address}"
    for more, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        env = environment(TERM="xterm-256color", **more)
        env.pop("NO_COLOR", None) if not more else None
        done = subprocess.run([script, "-qec", line, "/dev/null"], capture_output=True, text=True,
                              timeout=60, check=False, env=env)  # fmt: skip
        assert bool(ANSI.search(done.stdout)) is coloured, done.stdout


def test_ls_limits_and_says_what_it_left_out(world):
    """`--limit 2` shows the newest two, says how many are older, and own bytes stay exact."""
    answer = call("ls", world.address, "--limit", 2)
    assert "and 2 older ones" in answer.out
    two = call("ls", world.address, "--limit", 2, "--json").json
    everything = call("ls", world.address, "--json").json
    assert two["checkpoints"] == [
        {**row, "age_us": two["checkpoints"][i]["age_us"]}
        for i, row in enumerate(everything["checkpoints"][:2])
    ]
    assert two["total"] == 4
    (one,) = call("ls", world.address, "--limit", 1, "--json").json["checkpoints"]
    assert one["bytes_exclusive"] == everything["checkpoints"][0]["bytes_exclusive"]


def test_own_bytes_are_what_a_delete_frees(world):
    """`bytes_exclusive` of a checkpoint equals the bytes that `delete` then reports."""
    rows = call("ls", world.address, "--json").json["checkpoints"]
    wanted = next(row for row in rows if row["epoch"] == 1)
    answer = call("delete", world.address, "1", "--json")
    assert answer.code == 0, answer.err
    assert answer.json["bytes"] == wanted["bytes_exclusive"]


def test_ls_of_a_root_with_several_pipelines_lists_them(world):
    """A root with two pipelines is listed by name; one of them can be chosen in three ways."""
    standard(world.root, name="other")
    answer = call("ls", world.root, "--json")
    assert [p["pipeline"] for p in answer.json["pipelines"]] == ["orders", "other"]
    ways = [call("ls", world.root, "other"), call("ls", world.root, "-p", "other"),
            call("ls", f"{world.root}/other")]  # fmt: skip
    # Their ages pass between the calls: everything but that column is the same.
    listings = [[line.split()[:2] for line in way.out.splitlines()] for way in ways]
    assert listings[0] == listings[1] == listings[2]
    assert len(listings[0]) > 1
    assert [way.code for way in ways] == [0, 0, 0]


def test_show_tells_the_manifest(world):
    """`show --json` has positions, watermarks, operators by partition, sinks and lineage."""
    answer = holdfast("show", world.address, world.ids[2][:16], "--json")
    view = msgspec.convert(answer.json, CheckpointView, strict=True)
    manifest = world.reader.manifest(world.ids[2])
    assert (view.checkpoint, view.fingerprint, view.parent) == (
        manifest.checkpoint, manifest.fingerprint, world.ids[1],
    )  # fmt: skip
    assert view.ancestors == [world.ids[1], world.ids[0]]
    assert view.children == [world.ids[3]]
    assert view.sources[0].position == {"0": "24", "1": "2"}
    assert view.sources[0].watermark_us == manifest.sources[0].watermark_us
    totals = next(o for o in view.operators if o.name == "totals")
    files = manifest.files_of("totals")
    assert [(p.partition, p.files, p.rows, p.bytes) for p in totals.partitions] == [
        (n, len(mine), sum(f.rows for f in mine), sum(f.size for f in mine))
        for n in (0, 1) if (mine := [f for f in files if f.partition == n])
    ]  # fmt: skip
    assert [(s.name, s.status) for s in view.sinks] == [("out", "committed")]
    assert len(view.files) == len(manifest.files)


def test_no_token_of_a_sink_is_ever_shown(world):
    """Tokens can lead to data, so no verb prints them, in a table or as JSON."""
    world.grow({"x": 1}, settle=False)
    for args in (["show", world.address], ["recover", "--plan", world.address],
                 ["ls", world.address], ["restore", "--dry-run", "--to", "0", world.address]):  # fmt: skip
        for more in ([], ["--json"]):
            answer = call(*args, *more)
            assert "secret-token" not in answer.out + answer.err, args


@pytest.mark.parametrize(
    ("pattern", "how", "shallow"),
    [
        ("checkpoints/*/operators/totals/*.snap", "flip", 0),
        ("checkpoints/*/operators/totals/*.delta", "cut", 1),
        ("checkpoints/*/operators/totals/*.delta", "remove", 1),
        ("checkpoints/*/manifest.json", "flip", 1),
        ("catalog/*.json", "flip", 1),
        ("outcomes/*.json", "flip", 1),
    ],
)
def test_verify_finds_damage_and_names_the_file(world, pattern, how, shallow):
    """Deep finds every change and names the file; shallow finds all but equal-sized content."""
    file = world.file_of(pattern)
    damage(file, how)
    assert call("verify", world.address).code == shallow
    answer = call("verify", "--deep", world.address, "--json")
    assert answer.code == 1
    report = msgspec.convert(answer.json, Verification, strict=True)
    assert not report.ok
    assert any(f.path.endswith(str(file.relative_to(world.root))) for f in report.findings)


def test_ls_shows_damage_instead_of_skipping(world):
    """A lost run makes the checkpoints that need it `damaged`, the others stay ok; exit 1."""
    damage(world.file_of(f"checkpoints/{world.ids[2]}/operators/totals/*.delta"), "remove")
    answer = call("ls", world.address, "--json")
    assert answer.code == 1
    health = {r["epoch"]: r["health"] for r in answer.json["checkpoints"]}
    assert health == {0: "ok", 1: "ok", 2: "damaged", 3: "damaged"}


def test_recover_plan_says_what_is_chosen_and_why_not_the_others(world):
    """With the newest damaged, the plan names it, chooses the next, changes nothing, and exits 1."""
    damage(world.file_of(f"checkpoints/{world.ids[3]}/operators/totals/*.delta"))
    before = snapshot(world.root)
    answer = holdfast("recover", "--plan", world.address, "--json")
    assert answer.code == 1
    plan = msgspec.convert(answer.json, Recovery, strict=True)
    expected = hf.checkpoint.recovery_plan(world.storage, "orders")
    assert plan.checkpoint == expected.chosen.checkpoint == world.ids[2]
    assert [(c.epoch, c.verdict) for c in plan.candidates][:2] == [(3, "damaged"), (2, "chosen")]
    assert snapshot(world.root) == before
    assert call("recover", world.address).code == 2


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_state_is_the_model_at_every_checkpoint(world, at):
    """The rows of an operator at any checkpoint are those of the dict."""
    answer = call("state", world.address, "totals", "--at", f"epoch:{at}", "--limit", 0, "--json")
    rows = msgspec.convert(answer.json, StateRows, strict=True)
    assert [c.name for c in rows.columns] == ["customer", "total", "orders"]
    assert {r[0]: (r[1], r[2]) for r in rows.rows} == world.truth[world.ids[at]]
    assert not rows.more


def test_state_answers_sql_that_reads_the_rows_twice(world):
    """A self-join sees all rows on both sides, although the rows are a stream."""
    sql = "select count(*), sum(a.total) from state a join state b using (customer)"
    answer = holdfast("state", world.address, "totals", "--sql", sql, "--json")
    truth = world.truth[world.ids[-1]]
    assert [int(v) for v in answer.json["rows"][0]] == [
        len(truth), sum(total for total, _ in truth.values()),
    ]  # fmt: skip
    filtered = call("state", world.address, "totals", "--where", "total > 30", "--json").json
    assert {r[0] for r in filtered["rows"]} == {k for k, (t, _) in truth.items() if t > 30}


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow"])
def test_state_is_written_to_a_file_that_others_read(world, tmp_path, suffix):
    """Parquet, CSV and Arrow files hold the model's rows; an existing file is not replaced."""
    file = tmp_path / f"out.{suffix}"
    answer = call("state", world.address, "totals", "--to", file, "--json")
    assert answer.code == 0, answer.err
    read = {
        "parquet": lambda: pa.parquet.read_table(file),
        "csv": lambda: pa.csv.read_csv(file),
        "arrow": lambda: pa.ipc.open_file(pa.memory_map(str(file))).read_all(),
    }[suffix]
    rows = read().to_pylist()
    truth = world.truth[world.ids[-1]]
    assert {r["customer"]: (r["total"], r["orders"]) for r in rows} == truth
    assert answer.json["rows_written"] == len(truth)
    again = call("state", world.address, "totals", "--to", file)
    assert again.code == 2
    assert "exists already" in again.err
    assert [p.name for p in tmp_path.glob("*.partial")] == []


def test_state_of_damaged_rows_is_an_error_never_an_answer(world):
    """A flipped bit in a run stops the query with the file's name; nothing is answered."""
    damage(world.file_of("checkpoints/*/operators/totals/*.snap"))
    answer = call("state", world.address, "totals", "--sql", "select count(*) from state")
    assert answer.code == 1, answer.out
    assert answer.out == ""
    assert ".snap" in answer.err


def test_state_lists_operators_and_shows_small_state(world):
    """Without an operator all are listed; small state is shown as its value."""
    listed = call("state", world.address, "--json").json
    assert [o["name"] for o in listed["operators"]] == ["note", "totals"]
    assert call("state", world.address, "note").code == 0


def _model_diff(old, new):
    return (
        sorted(new.keys() - old.keys()),
        sorted(old.keys() - new.keys()),
        sorted(k for k in old.keys() & new.keys() if old[k] != new[k]),
    )


@pytest.mark.parametrize(("before", "after"), [(0, 3), (1, 2), (3, 0), (2, 2)])
def test_diff_of_rows_is_the_difference_of_the_models(world, before, after):
    """Added, removed and changed rows between any two checkpoints are those of the dicts."""
    answer = call("diff", world.address, before, after, "--operator", "totals", "--json",
                  "--limit", 0)  # fmt: skip
    assert answer.code == 0, answer.err
    found = msgspec.convert(answer.json, Difference, strict=True)
    old, new = (world.truth[world.ids[i]] for i in (before, after))
    added, removed, changed = _model_diff(old, new)
    rows = found.rows
    assert (rows.added, rows.removed, rows.changed) == (len(added), len(removed), len(changed))
    for kind, keys in (("added", added), ("removed", removed), ("changed", changed)):
        assert sorted(r.key["customer"] for r in rows.sample if r.change == kind) == keys
    for row in rows.sample:
        key = row.key["customer"]
        for side, model in ((row.before, old), (row.after, new)):
            assert (side and (side["total"], side["orders"])) == model.get(key)


def test_diff_shows_positions_and_operators(world, tmp_path):
    """Positions say how far each partition moved; changed rows can be written to a file."""
    file = tmp_path / "changes.parquet"
    answer = holdfast("diff", world.address, "epoch:0", "latest", "--json", "--operator", "totals",
                      "--to", file)  # fmt: skip
    found = answer.json
    assert found["positions"][0]["order"] == "forward"
    assert found["positions"][0]["before"] == {"0": "20", "1": "0"}
    assert found["positions"][0]["after"] == {"0": "26", "1": "3"}
    totals = next(o for o in found["operators"] if o["operator"] == "totals")
    assert (totals["files_only_before"], totals["change"]) == (0, "changed")
    counts = dict(duckdb.sql(f"select change, count(*) from '{file}' group by 1").fetchall())
    assert counts == {"added": 2, "removed": 1, "changed": 3}


def test_read_verbs_never_write(world, tmp_path):
    """No read verb and no dry run changes a byte, a time or a name, on a healthy store or a broken
    one; a copy without write permission is read all the same."""
    verbs = [
        ["ls"], ["show"], ["verify", "--deep"], ["recover", "--plan"], ["state"],
        ["state", None, "totals"], ["diff", None, "1", "3", "--operator", "totals"],
        ["gc", "--dry-run", "--retain", "2"], ["rebuild-catalog", "--dry-run", "--force"],
        ["restore", "--dry-run", "--to", "1"],
    ]  # fmt: skip
    copy = tmp_path / "copy"
    shutil.copytree(world.root, copy)
    (world.root / "orders" / "_latest").unlink()
    damage(world.file_of("catalog/*.json", 1))
    for root in (world.root, copy):
        if root == copy:
            for path in [copy, *copy.rglob("*")]:
                path.chmod(0o555 if path.is_dir() else 0o444)
        before = snapshot(root)
        for verb in verbs:
            args = [f"{root}/orders" if word is None else word for word in verb]
            args += [] if None in verb else [f"{root}/orders"]
            answer = call(*args)
            assert answer.code in (0, 1), (args, answer.err)
            assert snapshot(root) == before, args
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755)


def test_starting_imports_nothing_heavy():
    """`ls --help` and `ls` of a missing path load no Spark, Arrow, DuckDB, obstore or Rich."""
    code = (
        "import sys; from holdfast.cli.main import main\n"
        "main(['ls', '--help']); main(['ls', '/nonexistent/x'])\n"
        "heavy = {'pyspark', 'pyarrow', 'duckdb', 'obstore', 'rich', 'numpy'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=60, check=True, env=environment())  # fmt: skip
    assert "HEAVY []" in done.stdout


def test_a_query_loads_only_what_it_needs(world):
    """`state --sql` over several runs with text keys loads no pandas, and no verb but its own."""
    query = "select count(*) from state"
    code = (
        "import sys; from holdfast.cli.main import main\n"
        f"main(['state', {world.address!r}, 'totals', '--sql', {query!r}])\n"
        "verbs = {n for n in sys.modules if n.startswith('holdfast.cli.commands.')}\n"
        "heavy = {'pyspark', 'pandas', 'rich', 'holdfast.checkpoint.store'} | verbs - {'holdfast.cli.commands.state'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)), 'duckdb' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=60, check=True, env=environment())  # fmt: skip
    assert "HEAVY [] True" in done.stdout


def test_a_query_whose_reader_has_gone_is_no_error(world):
    """`holdfast state --sql | head -1` ends quietly too, though that process leaves in a hurry."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "state", world.address, "totals", "--sql", "select 1"],
        stdout=write, stderr=subprocess.PIPE, timeout=60, check=False, env=environment(),
    )  # fmt: skip
    os.close(write)
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(("query", "code"), [("select 7 as n", 0), ("selekt", 2)])
def test_leaving_in_a_hurry_loses_neither_output_nor_exit_code(world, query, code):
    """After DuckDB was loaded, output into a pipe is whole and the exit code the right one."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "state", world.address, "totals", "--sql", query],
        capture_output=True, text=True, timeout=60, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == code
    assert ("7" in done.stdout) if code == 0 else ("selekt" in done.stderr)


def test_without_click_one_sentence_says_what_to_install():
    """A base install answers with the extra's name and exit 2 instead of a traceback."""
    code = "import sys; sys.modules['click'] = None; from holdfast.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=60, check=False, env=environment())  # fmt: skip
    assert done.returncode == 2
    assert "holdfast-spark[cli]" in done.stderr
    assert "Traceback" not in done.stderr


def test_shell_completion_knows_the_verbs():
    """The shell's completion protocol offers the verbs that begin like the word."""
    env = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast ver", "COMP_CWORD": "1"}
    assert "plain,verify" in holdfast(env=env).out.split()


def test_a_reader_that_has_seen_enough_is_no_error(world):
    """`holdfast ls | head -1` ends quietly when the pipe is closed."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "ls", world.address], stdout=write,
        stderr=subprocess.PIPE, timeout=60, check=False, env=environment(),
    )  # fmt: skip
    os.close(write)
    assert b"Traceback" not in done.stderr


def test_run_without_the_pipeline_says_so(tmp_path):
    """`run` is the only verb that needs Spark, and says which extra brings it."""
    code = (
        "import sys; sys.modules['holdfast.api.pipeline'] = None\n"
        "from holdfast.cli.main import main; sys.exit(main(['run', 'x.py']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=60, check=False, env=environment())  # fmt: skip
    assert done.returncode == 2
    assert "holdfast-spark[spark]" in done.stderr


def test_names_from_a_store_cannot_move_the_cursor(tmp_path):
    """Control characters in stored keys are shown as question marks."""
    world = World(tmp_path / "root").grow({"evil\x1b[2Jname": 1})
    answer = call("state", world.address, "totals")
    assert "\x1b" not in answer.out
    assert "evil?[2Jname" in answer.out
