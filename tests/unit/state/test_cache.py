"""The disk cache in front of remote runs."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError, StorageError
from holdfast.ids import RandomIds, SeededIds
from holdfast.state import RunCache, RunSource, TraceReader, Verify
from holdfast.storage.local.disk import Disk, installed_disk
from holdfast.storage.local.storage import LocalStorage
from tests.helpers.state_world import World


class Remote:
    """Local storage that claims to have no local files, as an object store does."""

    def __init__(self, root):
        self._storage = LocalStorage(root)
        self.ranges = 0
        self.asked_for: list[str] = []

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def local_path(self, path):
        return None

    def get_range(self, path, start, length):
        self.ranges += 1
        return self._storage.get_range(path, start, length)

    def get(self, path, *, bytes_max=None):
        self.asked_for.append(path)
        return self._storage.get(path, bytes_max=bytes_max)


@pytest.fixture
def world(tmp_path):
    world = World("latest", ["int64"], "text", seed=3, storage=LocalStorage(tmp_path / "store"))
    for _ in range(5):
        world.step(world.make_rows(40), 1)
    return world


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def read(world, remote, cache):
    source = RunSource(remote, cache=cache)
    return TraceReader(runs=tuple(world.runs), source=source, schema=world.schema).table()


def test_a_run_is_fetched_once_and_found_by_digest(world, tmp_path):
    """The second read asks the remote store for nothing."""
    remote = Remote(tmp_path / "store")
    cache = RunCache(tmp_path / "cache", bytes_max=1 << 20, ids=SeededIds(1))
    first = read(world, remote, cache)
    assert sorted(remote.asked_for) == sorted(run.path for run in world.runs)
    assert read(world, remote, cache).equals(first)
    assert len(remote.asked_for) == len(world.runs)
    names = {f"{run.sha256}.run" for run in world.runs}
    assert names <= set(names_in(tmp_path / "cache"))


def test_the_limit_holds_and_the_least_recently_used_goes(world, tmp_path):
    """Bytes stay below the limit, and what was used last stays."""
    sizes = [run.size for run in world.runs]
    cache = RunCache(tmp_path / "cache", bytes_max=sum(sizes[:3]), ids=SeededIds(1))
    remote = Remote(tmp_path / "store")
    for number, run in enumerate(world.runs):
        cache.fetch(remote, run.path, run)
        os.utime(tmp_path / "cache" / f"{run.sha256}.run", ns=(number, number))
        assert cache.usage_bytes() <= sum(sizes[:3])
    held = {name for name in names_in(tmp_path / "cache") if name.endswith(".run")}
    assert f"{world.runs[-1].sha256}.run" in held
    assert f"{world.runs[0].sha256}.run" not in held


def test_the_home_in_its_path_is_that_of_the_process(tmp_path, monkeypatch):
    """A driver says `~`, and each executor has the home of the user who runs it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    RunCache("~/runs", bytes_max=1, ids=SeededIds(1))
    assert (tmp_path / "runs").is_dir()


def test_one_run_larger_than_the_limit_is_still_served(world, tmp_path):
    """A limit below one run's size makes the cache slow, not useless."""
    cache = RunCache(tmp_path / "cache", bytes_max=1, ids=SeededIds(1))
    assert read(world, Remote(tmp_path / "store"), cache).num_rows
    with pytest.raises(InvalidInputError):
        RunCache(tmp_path / "cache", bytes_max=0, ids=SeededIds(1))


def test_damage_on_the_way_is_found_and_not_cached(world, tmp_path):
    """A run that arrives with other bytes is corruption that names it, and leaves no file."""
    file = world.storage.local_path(world.runs[0].path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    cache = RunCache(tmp_path / "cache", bytes_max=1 << 20, ids=SeededIds(1))
    with pytest.raises(CorruptionError) as caught:
        read(world, Remote(tmp_path / "store"), cache)
    assert caught.value.kind == "run_digest_differs"
    assert world.runs[0].path in str(caught.value)
    file.write_bytes(data[:-1])
    with pytest.raises(CorruptionError, match="size"):
        read(world, Remote(tmp_path / "store"), cache)
    file.unlink()
    with pytest.raises(NotFoundError):
        read(world, Remote(tmp_path / "store"), cache)
    assert cache.usage_bytes() == 0
    assert not [n for n in names_in(tmp_path / "cache") if "partial" in n]


def test_a_torn_cache_file_is_fetched_again(world, tmp_path):
    """A cached file of another size is dropped and replaced."""
    cache = RunCache(tmp_path / "cache", bytes_max=1 << 20, ids=SeededIds(1))
    remote = Remote(tmp_path / "store")
    right = read(world, remote, cache)
    for name in names_in(tmp_path / "cache"):
        if name.endswith(".run"):
            (tmp_path / "cache" / name).write_bytes(b"torn")
    assert read(world, remote, cache).equals(right)


def test_leftovers_of_dead_downloads_go(world, tmp_path):
    """A partial file that nobody is writing any more is removed, that of a live process counts."""
    sizes = sorted(run.size for run in world.runs)
    cache = RunCache(tmp_path / "cache", bytes_max=sum(sizes), ids=SeededIds(1))
    dead, live = (tmp_path / "cache" / f".partial-{sum(sizes)}-{who}" for who in ("a", "b"))
    dead.write_bytes(b"x")
    with live.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        cache.fetch(Remote(tmp_path / "store"), world.runs[0].path, world.runs[0])
        cache.fetch(Remote(tmp_path / "store"), world.runs[1].path, world.runs[1])
        assert live.exists()
        assert not dead.exists()
        assert cache.usage_bytes() == world.runs[1].size, "room is kept for what is on its way"
    cache.fetch(Remote(tmp_path / "store"), world.runs[0].path, world.runs[0])
    assert not live.exists()


def test_a_run_that_is_mapped_is_not_evicted(world, tmp_path):
    """Its disk space would not come back, and it would be downloaded a second time."""
    cache = RunCache(tmp_path / "cache", bytes_max=1, ids=SeededIds(1))
    remote = Remote(tmp_path / "store")
    mapped = cache.fetch(remote, world.runs[0].path, world.runs[0])
    again = cache.fetch(remote, world.runs[0].path, world.runs[0])  # a map of a cached file
    for run in world.runs[1:]:
        cache.fetch(remote, run.path, run)
    assert cache.usage_bytes() == mapped.size + world.runs[-1].size
    del mapped
    cache.fetch(remote, world.runs[1].path, world.runs[1])
    assert cache.usage_bytes() == again.size + world.runs[1].size
    del again
    cache.fetch(remote, world.runs[2].path, world.runs[2])
    assert cache.usage_bytes() == world.runs[2].size


def test_workers_that_fetch_at_once_stay_below_the_limit_and_download_once(world, tmp_path):
    """Downloads count with their size before a byte has come; one of several fetches a run."""
    sizes = [run.size for run in world.runs]
    limit = sum(sorted(sizes)[-4:])
    peaks = []

    class Slow(Remote):
        def get(self, path, *, bytes_max=None):
            peaks.append(sum(_promised(each) for each in (tmp_path / "cache").iterdir()))
            time.sleep(0.01)
            return super().get(path, bytes_max=bytes_max)

    remote = Slow(tmp_path / "store")
    cache = RunCache(tmp_path / "cache", bytes_max=limit, ids=RandomIds())
    with ThreadPoolExecutor(4) as pool:
        content = [
            *pool.map(lambda _: cache.fetch(remote, world.runs[0].path, world.runs[0]), range(8))
        ]
        assert len(remote.asked_for) == 1
        del content
        chosen = [run for _ in range(20) for run in world.runs]
        assert [*pool.map(lambda run: cache.fetch(remote, run.path, run).size, chosen)] == [
            run.size for run in chosen
        ]
    assert len(remote.asked_for) > len(world.runs), "nothing was evicted"
    assert max(peaks) <= limit


def _promised(path):
    """How many bytes a file of the cache has, or will have."""
    if path.name.startswith(".partial-"):
        return int(path.name.split("-")[1])
    try:
        return path.stat().st_size if path.name.endswith(".run") else 0
    except FileNotFoundError:
        return 0


@pytest.mark.parametrize("verify", ["touched", "digest"])
def test_what_the_disk_of_the_cache_has_damaged_is_fetched_again(world, tmp_path, verify):
    """Any flipped byte of a cached run, header or rows, costs one download and no answer."""
    cache = RunCache(tmp_path / "cache", bytes_max=1 << 20, ids=SeededIds(1))
    remote = Remote(tmp_path / "store")
    right = read(world, remote, cache)
    run = world.runs[0]
    path = tmp_path / "cache" / f"{run.sha256}.run"
    whole = path.read_bytes()
    for place in (8, run.size // 2, run.size - 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        source = RunSource(remote, cache=cache, verify=Verify(verify))
        table = TraceReader(runs=tuple(world.runs), source=source, schema=world.schema).table()
        assert table.equals(right)
    path.write_bytes(bytes(run.size))  # as a power cut may leave it
    assert read(world, remote, cache).equals(right)
    assert path.read_bytes() == whole
    path.write_bytes(
        whole[: run.size // 2] + bytes([whole[run.size // 2] ^ 1]) + whole[run.size // 2 + 1 :]
    )
    damaged = bytearray((tmp_path / "store" / run.path).read_bytes())
    damaged[run.size // 2] ^= 1
    (tmp_path / "store" / run.path).write_bytes(damaged)
    with pytest.raises(CorruptionError):
        read(world, remote, cache)


def test_a_full_disk_serves_small_runs_from_memory(world, tmp_path, monkeypatch):
    """The cache is emptied, the run is read all the same; one that is too large is refused."""

    class Full(Disk):
        def write(self, descriptor, data):
            raise OSError(errno.ENOSPC, "No space left on device")

    remote, run = Remote(tmp_path / "store"), world.runs[0]
    cache = RunCache(tmp_path / "cache", bytes_max=1 << 20, ids=SeededIds(1))
    cache.fetch(remote, world.runs[1].path, world.runs[1])
    with installed_disk(Full()):
        cache = RunCache(tmp_path / "cache", bytes_max=1 << 20, ids=SeededIds(2))
    assert cache.fetch(remote, run.path, run).to_pybytes() == remote.get(run.path)
    assert cache.usage_bytes() == 0
    assert not [name for name in names_in(tmp_path / "cache") if "partial" in name]
    monkeypatch.setattr("holdfast.state.cache._MEMORY_BYTES_MAX", 1)
    with pytest.raises(StorageError) as caught:
        cache.fetch(remote, run.path, run)
    assert caught.value.kind == "cache_failed"


def test_open_runs_hold_at_most_half_of_the_cache(world, tmp_path):
    """A worker lets go of runs that it has not used for longest: the cache cannot evict them."""
    sizes = [run.size for run in world.runs]
    cache = RunCache(tmp_path / "cache", bytes_max=2 * max(sizes), ids=SeededIds(1))
    source = RunSource(Remote(tmp_path / "store"), cache=cache)
    for run in world.runs:
        source.open(run, world.schema)
        assert cache.usage_bytes() <= 2 * max(sizes)


def test_an_evicted_run_stays_readable_for_who_has_it_open(world, tmp_path):
    """Eviction removes a name, not the pages of somebody else's mapping."""
    cache = RunCache(tmp_path / "cache", bytes_max=1 << 20, ids=SeededIds(1))
    source = RunSource(Remote(tmp_path / "store"), cache=cache)
    opened = source.open(world.runs[0], world.schema)
    for name in names_in(tmp_path / "cache"):
        (tmp_path / "cache" / name).unlink()
    assert opened.batch(0).num_rows


def _reader(root, runs, schema, results):
    cache = RunCache(root / "cache", bytes_max=sum(r.size for r in runs) // 2, ids=RandomIds())
    rows = []
    for _ in range(10):
        source = RunSource(Remote(root / "store"), cache=cache)
        rows.append(TraceReader(runs=tuple(runs), source=source, schema=schema).table().num_rows)
    results.put(rows)


def test_processes_share_one_directory(world, tmp_path):
    """Processes that fetch and evict in one directory all read the same rows."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    args = (tmp_path, world.runs, world.schema, results)
    workers = [context.Process(target=_reader, args=args) for _ in range(2)]
    for worker in workers:
        worker.start()
    seen = [results.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert {count for rows in seen for count in rows} == {len(world.visible())}


def test_open_runs_are_bounded_and_can_be_let_go(world):
    """A source keeps at most `open_max` runs open, the last used ones, and `retain` drops others."""
    source = RunSource(world.storage, open_max=2)
    first = [source.open(run, world.schema) for run in world.runs]
    assert source.open(world.runs[-1], world.schema) is first[-1]
    assert source.open(world.runs[0], world.schema) is not first[0]
    source.retain([world.runs[-1]])
    assert source.open(world.runs[-1], world.schema) is first[-1]
