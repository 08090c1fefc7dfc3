"""Bad input: a clear typed error with a kind and a remedy, and nothing changed."""

from __future__ import annotations

import subprocess

import pytest

import holdfast
from holdfast.errors import (
    CorruptionError,
    HoldfastError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.runtime.checkpoint_marks import checked_marks
from holdfast.storage import open_storage
from tests.helpers.rig import Rig, at, forge, manifest_path, record_path, shop, tree


def refused(use, error, kind, *, below=None):
    """The call fails with this error and kind, with a remedy, and changes nothing below."""
    before = tree(below) if below is not None else None
    with pytest.raises(error) as caught:
        use()
    assert isinstance(caught.value, HoldfastError)
    assert caught.value.kind == kind
    assert caught.value.remedy, str(caught.value)
    if below is not None:
        assert tree(below) == before
    return caught.value


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "http://host/x", "hdfs://n/x", "S4://b", "x-y://z"]
)
def test_an_unknown_scheme_is_named(url):
    """An address that nobody can open says which schemes there are."""
    error = refused(lambda: open_storage(url), InvalidInputError, "unknown_scheme")
    assert "s3://" in error.remedy


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hunter2@bucket/p", "s3://hunter2@bucket/p", "s3://bucket/p?secret=hunter2",
        "az://account:hunter2@c/p", "gs://x:hunter2@b", "file://u:hunter2@localhost/x",
    ],
)  # fmt: skip
def test_credentials_in_an_address_are_refused_and_not_repeated(url):
    """Addresses are printed, so secrets in them are refused, and the error does not print them."""
    for use in (
        lambda: open_storage(url),
        lambda: holdfast.checkpoint.open_store(url, "shop", topology=shop()),
        lambda: holdfast.checkpoint.read_store(url, "shop"),
        lambda: holdfast.checkpoint.recovery_plan(url, "shop"),
    ):
        error = refused(use, InvalidInputError, "secret_in_url")
        assert "hunter2" not in str(error)


def test_options_that_make_no_sense_show_no_value():
    """A wrong option of an object store is reported without what was given for it."""
    use = lambda: open_storage("s3://bucket/p", options={"secret_acces_key": "hunter2"})  # noqa: E731
    error = refused(use, InvalidInputError, "bad_url")
    assert "hunter2" not in str(error)


def test_a_file_address_of_another_host_is_refused():
    """`file://host/path` cannot mean this machine."""
    with pytest.raises(InvalidInputError) as caught:
        open_storage("file://elsewhere/x")
    assert caught.value.kind == "bad_url"


def test_a_file_address_is_a_path(tmp_path):
    """`file:///path` with escapes opens that directory."""
    rig = Rig(tmp_path / "with space")
    rig.fill(1)
    assert holdfast.checkpoint.list_pipelines(f"file://{tmp_path}/with%20space") == ["shop"]


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    """A directory with other people's files is neither read as a store nor made into one."""
    home = tmp_path / "root" / "shop"
    home.mkdir(parents=True)
    (home / "notes.txt").write_text("mine")
    (home / "data").mkdir()
    (home / "data" / "part-0.parquet").write_bytes(b"PAR1")
    rig = Rig(tmp_path / "root")
    for use in (
        rig.open,
        rig.reader,
        lambda: holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop"),
    ):
        refused(use, InvalidInputError, "not_a_store", below=tmp_path)
    plan = holdfast.checkpoint.recovery_plan(rig.root, "shop")
    assert (plan.mode, plan.refusal.kind) == ("refuse", "not_a_store")


def test_a_pipeline_that_does_not_exist_is_not_found(tmp_path):
    """Reading a name that is not there is not found, and creates nothing."""
    Rig(tmp_path / "root").fill(1)
    use = lambda: holdfast.checkpoint.read_store(tmp_path / "root", "other")  # noqa: E731
    refused(use, NotFoundError, "no_pipeline", below=tmp_path)


def test_foreign_files_beside_ours_stay_and_are_reported(rig):
    """Strangers' files inside a store are reported by verify and gc, and are never deleted."""
    rig.fill(3)
    strangers = [
        "notes.txt",
        "catalog/readme.md",
        "pins/x.txt",
        "checkpoints/manual/file",
        "lost+found/a",
    ]
    for name in strangers:
        path = rig.home / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    report = rig.verify()
    assert report.ok
    assert sorted(f.path for f in report.all_findings()) == sorted(f"shop/{n}" for n in strangers)
    assert {f.severity for f in report.all_findings()} == {"info"}
    with rig.open(settings=holdfast.Settings(retain=2)) as store:
        done = store.gc()
        assert sorted(e.path for e in done.plan.foreign) == sorted(strangers)
        assert len(store.list()) == 2
    assert all((rig.home / name).read_text() == "mine" for name in strangers)


@pytest.mark.parametrize(
    "name", ["../shop", "a/b", "", ".", "..", "/shop", "a\\b", "a\nb", "x" * 200]
)
def test_a_name_that_climbs_is_refused_everywhere(tmp_path, name):
    """No function of the public API takes a name with a path in it."""
    rig = Rig(tmp_path / "root")
    rig.fill(1)
    for use in (
        lambda: holdfast.checkpoint.open_store(rig.root, name, topology=shop()),
        lambda: holdfast.checkpoint.read_store(rig.root, name),
        lambda: holdfast.checkpoint.recovery_plan(rig.root, name),
        lambda: holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), name),
        lambda: holdfast.checkpoint.topology(
            holdfast.checkpoint.Part(name=name, kind="sink", what="x")
        ),
    ):
        refused(use, InvalidInputError, "invalid_name", below=tmp_path)


@pytest.mark.parametrize("label", ["latest", "0198c0de-0000-7000-8000-000000000000", "a b"])
def test_a_label_that_could_never_be_found_is_refused(rig, label):
    """A label that means something else already names nothing: not of a run, nor of a pin."""
    rig.fill(1)
    with rig.open() as store:
        for use in (
            lambda: store.pin(label),
            lambda: checked_marks(label, None),
            lambda: store.draft(epoch=9, label=label),
        ):
            refused(use, InvalidInputError, "invalid_name", below=rig.root)


@pytest.mark.parametrize("ref", ["../x", "epoch:x", "epoch:", "nope", "", "0" * 36, "latest/.."])
def test_a_reference_to_nothing_is_not_found(rig, ref):
    """Any text can be asked for; what does not name a checkpoint is not found."""
    rig.fill(1)
    refused(lambda: rig.reader().resolve(ref), NotFoundError, "no_checkpoint", below=rig.root)


def test_an_ambiguous_reference_is_refused(rig):
    """The start of an id that two checkpoints share is not guessed."""
    first, second = rig.fill(2)
    common = first.checkpoint[:8]
    assert second.checkpoint.startswith(common)
    refused(lambda: rig.reader().resolve(common), InvalidInputError, "ambiguous", below=rig.root)
    assert rig.reader().resolve(first.checkpoint[:30]).checkpoint == first.checkpoint


@pytest.mark.parametrize("what", ["header", "record"])
def test_a_newer_format_stops_everything(rig, what):
    """A store that a newer version wrote is left alone by every function."""
    rig.fill(2)
    path = {"header": rig.home / "holdfast.json", "record": record_path(rig, 1)}[what]
    path.write_bytes(forge(path.read_bytes(), format=7, invented="later"))
    for use in (
        rig.open,
        lambda: rig.reader().list(),
        lambda: holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop"),
    ):
        refused(use, IncompatibleError, "newer_format", below=rig.root)
    plan_kind = _plan_kind(rig)
    assert plan_kind == "newer_format"


def _plan_kind(rig):
    return holdfast.checkpoint.recovery_plan(rig.root, "shop").refusal.kind


def test_a_newer_manifest_is_not_left_out_of_a_rebuild(rig):
    """A rebuild does not drop what a newer version wrote: it stops."""
    _, second = rig.fill(2)
    path = manifest_path(rig, second.checkpoint)
    path.write_bytes(forge(path.read_bytes(), format=7))
    for record in (rig.home / "catalog").iterdir():
        record.unlink()
    use = lambda: holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop")  # noqa: E731
    refused(use, IncompatibleError, "newer_format", below=rig.root)


@pytest.mark.parametrize(
    "place", ["holdfast.json", "catalog", "catalog/00000000000000000000.json", "checkpoints", "outcomes"]
)  # fmt: skip
def test_a_symbolic_link_inside_a_store_is_refused(rig, tmp_path, place):
    """A link instead of one of our files or directories is not followed, for reading or writing."""
    with rig.open() as store:
        rig.commit(store)
        store.pin("gold")
    target = rig.home / place
    moved = tmp_path / "moved"
    target.rename(moved)
    target.symlink_to(moved)
    before = tree(tmp_path)
    with pytest.raises((RefusedError, CorruptionError)) as caught:
        rig.open()
    assert caught.value.kind in ("symlink_refused", "catalog_lost", "no_intact_checkpoint")
    assert tree(tmp_path) == before


def test_linked_pins_stop_every_collection(rig, tmp_path):
    """Savepoints behind a link cannot be read, so nothing is dropped."""
    with rig.open() as store:
        for _ in range(4):
            rig.commit(store)
        store.pin("gold", "epoch:0")
    (rig.home / "pins").rename(tmp_path / "moved")
    (rig.home / "pins").symlink_to(tmp_path / "moved")
    with rig.open(settings=holdfast.Settings(retain=2)) as store:
        refused(store.gc, RefusedError, "symlink_refused", below=rig.root)
        refused(lambda: store.delete("epoch:0"), RefusedError, "symlink_refused", below=rig.root)
        assert store.retain().error.kind == "symlink_refused"
        assert len(store.list()) == 4
    assert not rig.verify().ok


def test_a_linked_root_is_the_users_own_choice(tmp_path):
    """Only links inside a store are refused; the way to the root may have some."""
    Rig(tmp_path / "real").fill(1)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert holdfast.checkpoint.list_pipelines(tmp_path / "link") == ["shop"]


def test_a_renamed_pipeline_is_refused(rig):
    """A directory that was copied or renamed says whose it is."""
    rig.fill(1)
    rig.home.rename(rig.root / "other")
    use = lambda: holdfast.checkpoint.read_store(rig.root, "other")  # noqa: E731
    error = refused(use, CorruptionError, "misplaced", below=rig.root)
    assert (error.facts["expected"], error.facts["actual"]) == ("other", "shop")


def test_an_unwritable_store_can_be_read_and_says_so_when_written(tmp_path):
    """On a read-only file system every reading function works, and opening for writing is refused."""
    mount = tmp_path / "mount"
    mount.mkdir()
    rig = Rig(mount / "root")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.decode().strip()}")
    try:
        rig.fill(2)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        assert rig.verify().ok
        assert len(rig.reader().list()) == 2
        assert holdfast.checkpoint.recovery_plan(rig.root, "shop").mode == "resume"
        assert len(holdfast.checkpoint.footprints(rig.reader())) == 2
        refused(rig.open, StorageError, "read_only", below=mount)
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


def test_a_full_disk_fails_the_commit_and_nothing_else(tmp_path):
    """Without room the commit fails by name, the old checkpoint stays, and after room comes it works."""
    mount = tmp_path / "mount"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {made.stderr.decode().strip()}")
    try:
        rig = Rig(mount / "root")
        with rig.open() as store:
            first = rig.commit(store)
            ballast = mount / "ballast"
            with pytest.raises(OSError, match="space"), ballast.open("wb") as file:
                while True:
                    file.write(b"x" * 4096)
                    file.flush()
            with pytest.raises(StorageError) as caught:
                rig.commit(store)
            assert caught.value.kind == "disk_full"
            assert caught.value.retryable
            assert caught.value.remedy
            assert [e.checkpoint for e in store.list()] == [first.checkpoint]
            assert [e.checkpoint for e in rig.reader().list()] == [first.checkpoint]
            ballast.unlink()
            rig.commit(store)
        assert rig.verify().ok
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=False)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda d: d.set_source("nobody", at(1)), "unknown_part"),
        (lambda d: d.set_source("totals", at(1)), "unknown_part"),
        (lambda d: d.put_small("out", b""), "unknown_part"),
        (lambda d: d.stage_sink("orders", "t", replay="none"), "unknown_part"),
        (lambda d: d.stage_sink("out", "x" * 70_000, replay="none"), "token_too_large"),
        (lambda d: d.set_properties({"a": "x" * 5_000}), "properties_too_large"),
        (lambda d: d.set_operator("totals", trace="small"), "invalid_state"),
        (lambda d: d.write_run("totals", -1, b"", snapshot=True), "invalid_partition"),
        (lambda d: d.write_run("totals", 0, b"", snapshot=False), "delta_without_base"),
        (lambda d: d.create("checkpoints/elsewhere/x"), "invalid_path"),
    ],
)
def test_a_draft_refuses_what_does_not_fit(rig, spoil, kind):
    """Unknown names, oversized texts and impossible runs are refused when they are given."""
    with rig.open() as store:
        draft = store.draft()
        with pytest.raises(InvalidInputError) as caught:
            spoil(draft)
        assert caught.value.kind == kind


def test_a_finished_or_outdated_draft_is_refused(rig):
    """A draft is committed once, by its own store, on the checkpoint it began from."""
    with rig.open() as store:
        one, two = rig.draft(store), rig.draft(store)
        store.commit(one)
        refused(lambda: store.commit(one), InvalidInputError, "draft_finished", below=rig.root)
        refused(lambda: store.commit(two), InvalidInputError, "draft_outdated", below=rig.root)


def test_a_source_that_goes_back_is_refused(rig):
    """A commit whose source lost ground names the source and changes no checkpoint."""
    with rig.open() as store:
        rig.commit(store)
        rig.offset = -5
        draft = rig.draft(store)
        error = refused(lambda: store.commit(draft), InvalidInputError, "position_regressed")
        assert error.facts["source"] == "orders"
        assert len(store.list()) == 1
