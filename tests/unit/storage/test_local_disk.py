"""What only a local disk has: links, temporary names, locks, permissions, a full disk."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.storage import LocalStorage
from holdfast.storage.local.disk import Disk
from tests.helpers.paths import child_environment
from tests.helpers.rig import disk_bytes, tree


@pytest.fixture
def storage(tmp_path):
    made = LocalStorage(tmp_path / "root")
    yield made
    made.close()


class FailingDisk(Disk):
    """A disk on which one call fails with an error of the system."""

    def __init__(self, call: str, number: int = errno.EIO, *, after: int = 0) -> None:
        self.call, self.number, self.after = call, number, after

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name.startswith("_") or name in ("call", "number", "after") or name != self.call:
            return value

        def fail(*args):
            if self.after > 0:
                self.after -= 1
                return value(*args)
            raise OSError(self.number, os.strerror(self.number))

        return fail


def test_a_symbolic_link_at_the_leaf_is_refused(storage, tmp_path):
    """A link is neither read nor written through, and what it points to stays as it is."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (tmp_path / "root" / "p").mkdir()
    (tmp_path / "root" / "p" / "link").symlink_to(secret)
    for use in (
        storage.get,
        storage.stat,
        storage.exists,
        lambda p: storage.get_range(p, 0, 1),
        lambda p: storage.put(p, b"x"),
        lambda p: storage.barrier([p]),
        lambda p: storage.exclusive(p, "me"),
    ):
        with pytest.raises(RefusedError) as caught:
            use("p/link")
        assert caught.value.kind == "symlink_refused"
        assert caught.value.remedy
    for use in (lambda: storage.put_new("p/link", b"x"), lambda: storage.create("p/link")):
        with pytest.raises(AlreadyExistsError):
            use()
    assert secret.read_bytes() == b"secret"
    storage.delete("p/link")
    assert secret.read_bytes() == b"secret"


def test_a_symbolic_link_as_a_directory_is_refused(storage, tmp_path):
    """A linked directory is not walked through, by no operation, and is listed as a leaf."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x")
    (tmp_path / "root" / "p").symlink_to(outside)
    before = tree(tmp_path)
    for use in (
        storage.get,
        storage.stat,
        storage.create,
        storage.delete,
        storage.local_path,
        lambda p: storage.put_new(p, b"y"),
        lambda p: storage.put(p, b"y"),
        lambda p: storage.barrier([p]),
        lambda p: storage.exclusive(p, "me"),
        lambda p: storage.list(p.split("/")[0]),
    ):
        with pytest.raises(RefusedError) as caught:
            use("p/file")
        assert caught.value.kind == "symlink_refused"
    assert [entry.path for entry in storage.list("")] == ["p"]
    assert tree(tmp_path) == before


@pytest.mark.parametrize("call", ["write", "sync", "close", "link_new", "sync_dir"])
def test_a_failed_put_leaves_no_temporary_name(tmp_path, call):
    """Whichever step fails, no temporary file is left over and the error is typed."""
    disk = FailingDisk("nothing yet")
    storage = LocalStorage(tmp_path / "root", disk=disk)
    storage.put_new("p/before", b"x")
    disk.call = call
    with pytest.raises(StorageError) as caught:
        storage.put_new("p/a", b"x")
    assert caught.value.kind == "io_error"
    assert caught.value.took_effect is (None if call == "sync_dir" else False)
    assert not caught.value.retryable
    assert not [name for name in tree(tmp_path) if ".hf-tmp-" in name]
    assert (call == "sync_dir") == (tmp_path / "root" / "p" / "a").exists()


@pytest.mark.parametrize("call", ["write", "rename"])
def test_a_failed_replacement_leaves_the_old_bytes(tmp_path, call):
    """A put that fails before the rename changes nothing at all."""
    LocalStorage(tmp_path / "root").put("p/a", b"old")
    before = tree(tmp_path)
    with pytest.raises(StorageError):
        LocalStorage(tmp_path / "root", disk=FailingDisk(call)).put("p/a", b"new")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("call", ["write", "close"])
def test_a_run_that_could_not_be_written_is_a_typed_error(tmp_path, call):
    """An error while a run is flushed or closed says so; a failed flush leaves no file."""
    storage = LocalStorage(tmp_path / "root", disk=FailingDisk(call, errno.ENOSPC))
    with pytest.raises(StorageError) as caught:
        with storage.create("p/run") as writer:
            writer.write(b"x" * 100)
    assert caught.value.kind == "disk_full"
    if call == "write":
        assert not (tmp_path / "root" / "p" / "run").exists()


def test_hard_links_are_not_needed(tmp_path):
    """On a file system without hard links, put-if-absent still has one winner."""
    storage = LocalStorage(tmp_path / "root", disk=FailingDisk("link_new", errno.EPERM))
    storage.put_new("p/a", b"first")
    with pytest.raises(AlreadyExistsError):
        storage.put_new("p/a", b"second")
    assert storage.get("p/a") == b"first"
    assert not [name for name in tree(tmp_path) if ".hf-tmp-" in name]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, "disk_full"),
        (errno.EDQUOT, "disk_full"),
        (errno.EACCES, "denied"),
        (errno.EROFS, "read_only"),
        (errno.EIO, "io_error"),
        (errno.EMFILE, "too_many_files"),
        (errno.ENAMETOOLONG, "name_too_long"),
        (errno.ENODEV, "os_error"),
    ],
)
def test_every_error_of_the_system_has_its_own_kind(tmp_path, number, kind):
    """One error, one kind, with a remedy and the path."""
    storage = LocalStorage(tmp_path / "root", disk=FailingDisk("open_new", number))
    with pytest.raises(StorageError) as caught:
        storage.put_new("p/a", b"x")
    assert caught.value.kind == kind
    assert caught.value.remedy
    assert caught.value.facts["path"] == "p/a"
    assert caught.value.took_effect is False


@pytest.mark.parametrize(("barrier", "calls"), [("fsync", "sync"), ("syncfs", "sync_filesystem")])
def test_a_failed_barrier_is_an_error_of_unknown_effect(tmp_path, barrier, calls):
    """A sync that fails is reported, in both kinds of barrier."""
    storage = LocalStorage(tmp_path / "root", barrier=barrier, disk=FailingDisk(calls))
    with storage.create("p/run") as writer:
        writer.write(b"x")
    with pytest.raises(StorageError) as caught:
        storage.barrier(["p/run"])
    assert caught.value.took_effect is None


class CountingDisk(Disk):
    """Writes down what is synced, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def sync(self, descriptor):
        self.log.append("file " + os.readlink(f"/proc/self/fd/{descriptor}"))
        super().sync(descriptor)

    def sync_dir(self, path):
        self.log.append(f"dir {path}")
        super().sync_dir(path)

    def sync_filesystem(self, descriptor):
        self.log.append("filesystem")
        super().sync_filesystem(descriptor)


def test_a_barrier_syncs_files_and_all_directories_up_to_the_root(tmp_path):
    """File by file: content first, then every name on the way, deepest first."""
    disk = CountingDisk()
    root = tmp_path / "root"
    storage = LocalStorage(root, barrier="fsync", disk=disk)
    for name in ("p/c/a", "p/c/b"):
        with storage.create(name) as writer:
            writer.write(b"x")
    disk.log.clear()
    storage.barrier(["p/c/a", "p/c/b"])
    assert disk.log == [
        f"file {root}/p/c/a", f"file {root}/p/c/b", f"dir {root}/p/c", f"dir {root}/p", f"dir {root}",
    ]  # fmt: skip


def test_a_whole_barrier_is_one_call(tmp_path):
    """With syncfs, a barrier over many files is one call of the system."""
    disk = CountingDisk()
    storage = LocalStorage(tmp_path / "root", barrier="syncfs", disk=disk)
    for number in range(10):
        with storage.create(f"p/{number}") as writer:
            writer.write(b"x")
    disk.log.clear()
    storage.barrier([f"p/{number}" for number in range(10)])
    assert disk.log == ["filesystem"]


def test_a_new_name_is_synced_before_put_new_returns(tmp_path):
    """Content, then name: the file is synced before it is linked, the directory after."""
    disk = CountingDisk()
    storage = LocalStorage(tmp_path / "root", disk=disk)
    storage.put_new("p/a", b"x")
    disk.log.clear()
    storage.put_new("p/b", b"x")
    assert [line.split()[0] for line in disk.log] == ["file", "dir"]
    assert ".hf-tmp-" in disk.log[0]
    assert disk.log[1] == f"dir {tmp_path}/root/p"


def test_a_new_directory_is_durable_in_its_parent(tmp_path):
    """Every directory that a put creates is synced into the one above it."""
    disk = CountingDisk()
    storage = LocalStorage(tmp_path / "root", disk=disk)
    disk.log.clear()
    storage.put_new("p/q/a", b"x")
    assert f"dir {tmp_path}/root" in disk.log
    assert f"dir {tmp_path}/root/p" in disk.log


def test_deleting_the_last_file_removes_the_directories_of_a_checkpoint_only(storage, tmp_path):
    """Empty directories of a checkpoint go; the pipeline's own directories stay."""
    storage.put_new("shop/checkpoints/id/operators/op/run", b"x")
    storage.put_new("shop/pins/a.json", b"x")
    storage.delete("shop/checkpoints/id/operators/op/run")
    storage.delete("shop/pins/a.json")
    assert sorted(tree(tmp_path / "root")) == ["shop", "shop/checkpoints", "shop/pins"]


def test_a_lock_is_exclusive_between_processes_and_ends_with_kill_9(storage, tmp_path):
    """The kernel releases the lock of a killed process; while it lives, its pid is shown."""
    script = textwrap.dedent(
        """
        import sys
        from holdfast.storage import LocalStorage
        lease = LocalStorage(sys.argv[1]).exclusive("p/lock", "child")
        print("held", flush=True)
        sys.stdin.read()
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "root")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    try:
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(ConflictError) as caught:
            storage.exclusive("p/lock", "me")
        assert caught.value.kind == "locked"
        assert caught.value.facts["pid"] == child.pid
        assert "takeover" in caught.value.remedy
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        storage.exclusive("p/lock", "me").release()
    finally:
        child.kill()
        child.communicate()


def test_a_lock_is_exclusive_within_a_process_and_can_be_released(storage):
    """Two leases cannot be held at once, released ones can be taken again."""
    lease = storage.exclusive("p/lock", "one")
    with pytest.raises(ConflictError):
        storage.exclusive("p/lock", "two")
    lease.release()
    lease.release()
    storage.exclusive("p/lock", "two").release()


def test_a_root_below_a_file_is_refused(tmp_path):
    """A file in the way is a typed error, and stays as it is."""
    (tmp_path / "file").write_bytes(b"mine")
    before = tree(tmp_path)
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InvalidInputError) as caught:
            LocalStorage(root)
        assert caught.value.kind == "not_a_directory"
        assert caught.value.remedy
    assert tree(tmp_path) == before


def test_a_root_that_does_not_exist_is_not_created_for_reading(tmp_path):
    """Without `create`, a missing directory is not found and not made."""
    with pytest.raises(NotFoundError) as caught:
        LocalStorage(tmp_path / "new", create=False)
    assert caught.value.kind == "no_root"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("root", ["a\0b", "~no-such-user-here/x", "bad-\ud800"])
def test_a_root_that_no_system_knows_is_refused(root):
    """An impossible name is an error of the caller, not a crash."""
    with pytest.raises(InvalidInputError) as caught:
        LocalStorage(root)
    assert caught.value.kind == "bad_url"


@pytest.fixture
def unprivileged(tmp_path_factory):
    """Runs the test as a user whom permissions stop, also where the suite runs as root."""
    import tempfile

    place = Path(tempfile.mkdtemp())
    if os.geteuid() == 0:
        place.chmod(0o755)
        os.seteuid(65534)
        yield place
        os.seteuid(0)
    else:
        place.chmod(0o555)
        yield place
        place.chmod(0o755)
    place.rmdir()


def test_a_directory_that_cannot_be_written_is_a_typed_error(unprivileged):
    """Missing permissions are named, with a remedy, and nothing was created."""
    with pytest.raises(StorageError) as caught:
        LocalStorage(unprivileged / "root")
    assert caught.value.kind == "denied"
    assert caught.value.took_effect is False
    assert caught.value.remedy
    storage = LocalStorage(unprivileged, create=False)
    with pytest.raises(StorageError) as caught:
        storage.put_new("p/a", b"x")
    assert caught.value.kind == "denied"
    assert [*unprivileged.iterdir()] == []


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one mebibyte."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=False)


def test_a_full_disk_is_told_and_leaves_what_was_there(small_disk):
    """A disk without room is a retryable typed error; old objects stay, no half of a new one does."""
    storage = LocalStorage(small_disk / "root")
    storage.put_new("p/a", b"x" * 400_000)
    for write in (
        lambda: storage.put_new("p/b", b"y" * 900_000),
        lambda: storage.put("p/a", b"y" * 900_000),
        lambda: _write(storage, "p/c", b"y" * 2_000_000),
    ):
        with pytest.raises(StorageError) as caught:
            write()
        assert caught.value.kind == "disk_full"
        assert caught.value.retryable
        assert caught.value.took_effect in (False, None)
    assert [entry.path for entry in storage.list("")] == ["p/a"]
    assert storage.get("p/a") == b"x" * 400_000
    assert storage.usage_bytes() == disk_bytes(small_disk)
    storage.delete("p/a")
    storage.put_new("p/b", b"y" * 900_000)
    storage.close()


def _write(storage, path, data):
    with storage.create(path) as writer:
        writer.write(data)


def test_a_read_only_file_system_is_named(small_disk):
    """A read-only file system refuses writing with its own kind, and reading works."""
    LocalStorage(small_disk / "root").put_new("p/a", b"x")
    done = subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=False)
    if done.returncode != 0:
        pytest.skip("a file system cannot be remounted read-only here")
    storage = LocalStorage(small_disk / "root", create=False)
    assert storage.get("p/a") == b"x"
    for write in (lambda: storage.put_new("p/b", b"x"), lambda: storage.delete("p/a")):
        with pytest.raises(StorageError) as caught:
            write()
        assert caught.value.kind == "read_only"
    storage.close()


def test_usage_is_what_the_disk_says(storage, tmp_path):
    """The kept number agrees with a fresh measurement after a mixed history."""
    storage.usage_bytes()
    for number in range(10):
        storage.put_new(f"p/{number}", b"x" * number)
        storage.put("p/same", b"y" * number)
    storage.delete("p/5")
    with storage.create("p/run") as writer:
        writer.write(b"z" * 77)
    assert storage.usage_bytes() == disk_bytes(tmp_path / "root")


def test_the_local_file_is_the_object(storage):
    """A local path can be opened and mapped, and is the object's own file."""
    storage.put_new("p/a", b"abc")
    path = storage.local_path("p/a")
    assert isinstance(path, Path)
    assert path.read_bytes() == b"abc"


def test_a_replacement_survives_another_clean_up(tmp_path):
    """A temporary name that another process's clean-up takes is written again."""

    class Swept(Disk):
        sweeps = 2

        def rename(self, source, target):
            if self.sweeps:
                self.sweeps -= 1
                os.unlink(source)
            super().rename(source, target)

    disk = Swept()
    storage = LocalStorage(tmp_path / "root", disk=disk)
    storage.put("p/a", b"new")
    assert (disk.sweeps, storage.get("p/a")) == (0, b"new")
    disk.sweeps = 1_000
    with pytest.raises(StorageError) as caught:
        storage.put("p/a", b"newer")
    assert caught.value.kind == "temporary_lost"
    assert storage.get("p/a") == b"new"
