"""Verbs that change a pipeline: savepoints, collection, rollback, beside a running writer or not."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import pytest

import holdfast as hf
from holdfast.errors import FencedError
from tests.helpers.cli_world import World, call, holdfast, standard


def epochs(world):
    return [row["epoch"] for row in call("ls", world.address, "--json").json["checkpoints"]]


def test_pins_work_beside_a_running_writer(world):
    """A savepoint is made and let go while a pipeline holds the store, and retention respects it."""
    store = world.open(takeover=False)
    assert holdfast("pin", world.address, "keep-me", "epoch:1", "--note", "why").code == 0
    world.settings = hf.Settings(retain=2)
    world.grow({"z": 1})
    report = store.gc()
    assert world.ids[1] in [s.checkpoint for s in store.list()]
    assert report.error is None
    assert call("show", world.address, "keep-me", "--json").json["epoch"] == 1
    assert holdfast("unpin", world.address, "keep-me").code == 0
    assert call("show", world.address, "keep-me").code == 2
    world.close()


@pytest.mark.parametrize("verb", [["gc"], ["delete", "1"], ["restore", "--to", "1"]])
def test_a_running_pipeline_is_not_disturbed_and_its_process_is_named(world, verb):
    """What needs the writer's role is refused while a process holds it; the message says which."""
    world.open()
    answer = holdfast(verb[0], world.address, *verb[1:])
    assert answer.code == 1
    assert str(os.getpid()) in answer.err
    assert "--takeover" in answer.err
    world.grow({"still": 1})
    world.close()


def test_takeover_fences_the_running_pipeline(world):
    """With --takeover the verb works, and the old writer finds out before it can commit."""
    world.open()
    assert holdfast("gc", world.address, "--takeover").code == 0
    with pytest.raises(FencedError):
        world.grow({"zombie": 1})
    world.close()


def test_object_stores_have_no_lock_so_a_takeover_is_asked_for(s3_world, s3_env):
    """On S3 nobody can see a running pipeline: gc is refused without --takeover and works with it."""
    refused = holdfast("gc", s3_world.address, "--retain", 2, env=s3_env)
    assert refused.code == 1
    assert "--takeover" in refused.err
    done = holdfast("gc", s3_world.address, "--retain", 2, "--takeover", "--json", env=s3_env)
    assert done.code == 0, done.err
    assert len(done.json["dropped"]) == 2
    assert hf.checkpoint.verify_store(s3_world.reader, deep=True).ok


def test_gc_drops_nothing_unless_asked(world):
    """Plain gc keeps every checkpoint and removes leftovers; unknown files are reported and stay."""
    stray = world.root / "orders" / "mine.txt"
    stray.write_text("not yours")
    leftover = world.root / "orders" / "checkpoints" / world.ids[0] / ".hf-tmp-0123456789abcdef"
    leftover.write_bytes(b"x" * 10)
    dry = call("gc", world.address, "--dry-run", "--json").json
    real = call("gc", world.address, "--json").json
    assert dry["files"] == real["files"] == 1
    assert real["unknown"] == [{"path": "mine.txt", "bytes": 9}]
    assert (real["dropped"], epochs(world)) == ([], [3, 2, 1, 0])
    assert stray.exists()
    assert not leftover.exists()


def test_gc_with_retain_does_what_its_dry_run_said(world):
    """The dry run names the checkpoints, files and bytes that the real run then removes."""
    call("pin", world.address, "hold", "epoch:0")
    dry = call("gc", world.address, "--retain", 2, "--dry-run", "--json").json
    real = call("gc", world.address, "--retain", 2, "--json").json
    assert dry["dropped"] == real["dropped"] == [world.ids[1]]
    assert (dry["files"], dry["bytes"]) == (real["files"], real["bytes"])
    assert "pinned as hold" in next(k for k in dry["kept"] if k["epoch"] == 0)["reasons"]
    assert hf.checkpoint.verify_store(world.reader, deep=True).ok


def test_delete_refuses_what_must_not_go(world):
    """Pinned and current checkpoints stay, with the reason; a deleted one is gone, the rest whole."""
    call("pin", world.address, "hold", "epoch:1")
    pinned = call("delete", world.address, "epoch:1")
    assert pinned.code == 1
    assert "pinned as hold" in pinned.err
    assert call("delete", world.address, "latest").code == 1
    assert call("delete", world.address, "epoch:2").code == 0
    assert epochs(world) == [3, 1, 0]
    assert hf.checkpoint.verify_store(world.reader, deep=True).ok


def test_a_damaged_newest_checkpoint_is_not_dropped_by_the_way(world):
    """gc and delete refuse to open a store whose opening would fall back."""
    world.file_of(f"checkpoints/{world.ids[3]}/operators/totals/*").unlink()
    answer = call("gc", world.address, "--retain", 2)
    assert answer.code == 1
    assert "restore" in answer.err
    assert epochs(world) == [3, 2, 1, 0]


@pytest.mark.parametrize("how", ["id", "short", "label", "epoch", "number", "time", "ago"])
def test_restore_rolls_back_by_every_way_of_naming(world, how):
    """After `restore --to`, the pipeline goes on from that checkpoint; newer ones are abandoned."""
    call("pin", world.address, "good", "epoch:1")
    stamps = {s.epoch: s.created_us for s in world.reader.list()}
    moment = datetime.fromtimestamp((stamps[1] + stamps[2]) / 2e6, UTC).isoformat()
    ref = {"id": world.ids[1], "short": world.ids[1][:18], "label": "good", "epoch": "epoch:1",
           "number": "1", "time": moment, "ago": "ago:0s"}[how]  # fmt: skip
    wanted = 3 if how == "ago" else 1
    answer = call("restore", world.address, "--to", ref, "--json")
    assert answer.code == 0, answer.err
    assert (answer.json["epoch"], answer.json["epoch_next"]) == (wanted, 4)
    assert len(answer.json["abandoned"]) == 3 - wanted
    store = world.open()
    assert store.current.checkpoint == world.ids[wanted]
    world.close()


def test_a_restore_can_be_undone(world):
    """Restoring an abandoned checkpoint brings it and its line back, for every later opening."""
    assert call("restore", world.address, "--to", "0").code == 0
    assert call("restore", world.address, "--to", "3").code == 0
    store = world.open()
    assert store.current.checkpoint == world.ids[3]
    world.close()
    assert call("ls", world.address, "--json").json["checkpoints"][0]["status"] == "committed"


@pytest.mark.parametrize("replay", ["deduplicates", "retracts", "none"])
def test_restore_says_what_each_sink_can_take_back(tmp_path, replay):
    """A sink that cannot take epochs back stops a restore unless duplicates are accepted by name."""
    world = standard(tmp_path / "root", replay=replay)
    dry = call("restore", world.address, "--to", "1", "--dry-run", "--json")
    (sink,) = dry.json["sinks"]
    assert (sink["sink"], sink["replay"], sink["epochs"]) == ("out", replay, [2, 3])
    assert sink["safe"] is (replay != "none")
    answer = call("restore", world.address, "--to", "1")
    assert answer.code == int(replay == "none")
    if replay == "none":
        assert "cannot take these epochs back" in " ".join(answer.out.split())
        assert "--accept-duplicates" in answer.out
        store = world.open()
        assert store.current.epoch == 3
        world.close()
        assert call("restore", world.address, "--to", "1", "--accept-duplicates").code == 0
    store = world.open()
    assert store.current.epoch == 1
    world.close()


def test_doctor_tries_a_disk_and_leaves_it_as_it_was(world):
    """Every check has a name, a status and what was found; the directory is unchanged after it."""
    names = sorted(path.name for path in world.root.iterdir())
    answer = holdfast("doctor", world.root, "--json")
    checks = {check["name"]: check for check in answer.json["checks"]}
    assert {"python", "java", "spark", "conditional put", "fsync", "disk"} <= checks.keys()
    for name in ("conditional put", "fsync", "python"):
        assert checks[name]["status"] in ("ok", "warning"), checks[name]
    assert all(c["remedy"] for c in checks.values() if c["status"] in ("warning", "problem"))
    assert sorted(path.name for path in world.root.iterdir()) == names


def test_doctor_tries_conditional_puts_on_s3(s3_world, s3_env):
    """On S3 a second put of one name is really tried, and nothing is left behind."""
    before = [e.path for e in s3_world.storage.list("")]
    answer = holdfast("doctor", s3_world.root, "--json", env=s3_env)
    checks = {check["name"]: check for check in answer.json["checks"]}
    assert checks["conditional put"]["status"] == "ok", checks
    assert [e.path for e in s3_world.storage.list("")] == before


def test_doctor_tells_the_connectors_and_the_lag_of_a_pipeline(tmp_path):
    """Of every source, without Spark; a source that cannot be looked at is a problem with its remedy."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"n": 1}\n')
    file = tmp_path / "pipe.py"
    file.write_text(
        "import holdfast as hf\n"
        f"pipe = hf.Pipeline('p', store={str(tmp_path / 'cp')!r})\n"
        f"files = hf.sources.Files({str(tmp_path / 'in')!r}, schema='n long', min_age_ms=0)\n"
        "pipe.source('numbers', files).distinct(name='all')\n"
    )
    answer = holdfast("doctor", "--pipeline", file, "--json")
    checks = {check["name"]: check for check in answer.json["checks"]}
    assert checks["lag"]["found"].startswith("numbers: 9 bytes, ")
    assert checks["sources"]["found"].startswith("Files, Generator, Journal")
    (tmp_path / "in" / "a.json").unlink()
    (tmp_path / "in").rmdir()
    answer = holdfast("doctor", "--pipeline", file, "--json")
    checks = {check["name"]: check for check in answer.json["checks"]}
    assert (checks["lag"]["status"], answer.code) == ("problem", 1)


def test_doctor_names_the_remedy_for_what_is_missing(tmp_path):
    """A missing root and a Java that does not answer are problems with a remedy; exit 1."""
    env = {"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    answer = holdfast("doctor", tmp_path / "nowhere", "--json", env=env)
    assert answer.code == 1
    store = next(c for c in answer.json["checks"] if c["name"] == "store")
    assert (store["status"], bool(store["remedy"])) == ("problem", True)


def test_two_worlds_do_not_mix(tmp_path):
    """Verbs given ROOT/PIPELINE touch that pipeline only."""
    one, two = standard(tmp_path / "root"), World(tmp_path / "root", name="two")
    two.grow({"a": 1}, {"a": 2}, {"a": 3})
    assert call("gc", two.address, "--retain", 2).code == 0
    assert (epochs(one), epochs(two)) == ([3, 2, 1, 0], [2, 1])
