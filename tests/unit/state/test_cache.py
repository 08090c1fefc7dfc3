"""The disk cache in front of remote runs."""

from __future__ import annotations

import multiprocessing
import os

import pytest

from holdfast.errors import CorruptionError, InvalidInputError, NotFoundError
from holdfast.ids import RandomIds, SeededIds
from holdfast.state import RunCache, RunSource, TraceReader
from holdfast.storage.local.storage import LocalStorage
from tests.helpers.state_world import World


class Remote:
    """Local storage that claims to have no local files, as an object store does."""

    def __init__(self, root):
        self._storage = LocalStorage(root)
        self.ranges = 0

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def local_path(self, path):
        return None

    def get_range(self, path, start, length):
        self.ranges += 1
        return self._storage.get_range(path, start, length)

    def get(self, path, *, bytes_max=None):
        raise AssertionError("runs must come through the cache")


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
    asked = remote.ranges
    assert asked == len(world.runs)
    assert read(world, remote, cache).equals(first)
    assert remote.ranges == asked
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
    """A partial file that is a day older than a new arrival is removed, a young one stays."""
    cache = RunCache(tmp_path / "cache", bytes_max=1 << 20, ids=SeededIds(1))
    for name, age_s in ((".partial-old", 2 * 86_400), (".partial-young", 60)):
        path = tmp_path / "cache" / name
        path.write_bytes(b"x")
        seen = path.stat().st_mtime_ns - age_s * 10**9
        os.utime(path, ns=(seen, seen))
    read(world, Remote(tmp_path / "store"), cache)
    left = [name for name in names_in(tmp_path / "cache") if "partial" in name]
    assert left == [".partial-young"]


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
