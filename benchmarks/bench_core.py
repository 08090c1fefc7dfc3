"""What does a commit cost beside the bare system calls, and how do open, list and manifests scale?

Run: python benchmarks/bench_core.py [--quick]

Every question alternates both sides inside one run and reports medians and ratios: machines are
shared and noisy, so a single number means little.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import holdfast as hf
from holdfast.checkpoint.commit.catalog import load_catalog
from holdfast.format.manifest import FileEntry, manifest_bytes, parse_manifest
from holdfast.storage import LocalStorage, MemoryStorage
from holdfast.storage.local.disk import Disk

TOPOLOGY = hf.checkpoint.topology(
    hf.checkpoint.Part(name="orders", kind="source", what="counter"),
    hf.checkpoint.Part(
        name="totals", kind="operator", what="aggregate", inputs=["orders"], stateful=True
    ),
)


def median_ms(times: list[float]) -> float:
    return statistics.median(times) * 1e3


def clocked(times: list[float], work) -> object:
    start = time.perf_counter()
    result = work()
    times.append(time.perf_counter() - start)
    return result


# Commit against the bare system calls


class CountingDisk(Disk):
    """Counts system calls by name, so that the bare side makes exactly the same ones."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}


def _counted(name: str):
    real = getattr(Disk, name)

    def call(self: CountingDisk, *args):
        self.counts[name] = self.counts.get(name, 0) + 1
        return real(self, *args)

    return call


for _name in [n for n in vars(Disk) if not n.startswith("_")]:
    setattr(CountingDisk, _name, _counted(_name))


class Bare:
    """The system calls of one commit and nothing else: same files, same sizes, same syncs."""

    def __init__(self, root: Path, *, whole: bool) -> None:
        self.disk = Disk()
        self.root = root
        self.whole = whole
        self.number = 0
        for name in ("catalog", "checkpoints"):
            (root / name).mkdir(parents=True)
        self.handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)

    def _file(self, path: Path, data: bytes, *, sync: bool) -> None:
        descriptor = self.disk.open_new(path)
        self.disk.write(descriptor, data)
        if sync:
            self.disk.sync(descriptor)
        self.disk.close(descriptor)

    def runs(self, sizes: list[int]) -> list[Path]:
        """What executors do before the commit: not part of it on either side."""
        self.number += 1
        home = self.root / "checkpoints" / str(self.number)
        place = home / "operators" / "totals"
        for directory in (home, home / "operators", place):
            self.disk.make_dir(directory)
            self.disk.sync_dir(directory.parent)
        files = []
        for index, size in enumerate(sizes):
            files.append(place / f"{index}.delta")
            self._file(files[-1], secrets.token_bytes(size), sync=False)
        return files

    def commit(self, files: list[Path], manifest: bytes, record: bytes, hint: bytes) -> None:
        home = files[0].parents[2]
        self._file(home / "tmp", manifest, sync=False)
        self.disk.rename(home / "tmp", home / "manifest.json")
        if self.whole:
            self.disk.sync_filesystem(self.handle)
        else:
            for file in [*files, home / "manifest.json"]:
                descriptor = self.disk.open_read(file)
                self.disk.sync(descriptor)
                self.disk.close(descriptor)
            for directory in (
                files[0].parent,
                files[0].parents[1],
                home,
                home.parent,
                self.root,
                self.root.parent,
            ):
                self.disk.sync_dir(directory)
        catalog = self.root / "catalog"
        self._file(catalog / "tmp", record, sync=True)
        self.disk.link_new(catalog / "tmp", catalog / f"{self.number}.json")
        self.disk.sync_dir(catalog)
        self.disk.unlink(catalog / "tmp")
        self._file(self.root / "tmp", hint, sync=False)
        self.disk.rename(self.root / "tmp", self.root / "_latest")


def bench_commit(rounds: int, work: Path) -> None:
    print("\n## Commit against the bare system calls (goal: at most 1.5)")
    print("| barrier | new files | inherited | commit ms | bare ms | ratio | syncs | other calls |")
    print("|---|---|---|---|---|---|---|---|")
    for barrier in ("syncfs", "fsync"):
        for files, inherited in ((1, 0), (4, 0), (16, 0), (4, 100), (4, 1000)):
            _commit_case(rounds, work, barrier, files, inherited)


def _commit_case(rounds: int, work: Path, barrier: str, files: int, inherited: int) -> None:
    base = Path(tempfile.mkdtemp(dir=work))
    disk = CountingDisk()
    storage = LocalStorage(base / "ours", barrier=barrier, disk=disk)
    bare = Bare(base / "bare" / "p", whole=barrier == "syncfs")
    sizes = [20_000] * files
    ours: list[float] = []
    theirs: list[float] = []
    counts: dict[str, int] = {}
    settings = hf.Settings(recovery_verify="shallow")
    with hf.checkpoint.open_store(storage, "p", topology=TOPOLOGY, settings=settings) as store:
        if inherited:
            store.commit(_draft(store, [1000] * inherited))
        for _ in range(rounds):
            draft = _draft(store, sizes, inherited)
            disk.counts = {}
            summary = clocked(ours, lambda: store.commit(draft))
            counts = dict(disk.counts)
            home = base / "ours" / "p"
            manifest = (home / "checkpoints" / summary.checkpoint / "manifest.json").read_bytes()
            record = (home / "catalog" / f"{summary.sequence:020d}.json").read_bytes()
            hint = (home / "_latest").read_bytes()
            written = bare.runs(sizes)
            clocked(theirs, lambda: bare.commit(written, manifest, record, hint))
            store.retain()
    syncs = sum(counts.get(name, 0) for name in ("sync", "sync_dir", "sync_filesystem"))
    other = sum(counts.values()) - syncs
    a, b = median_ms(ours), median_ms(theirs)
    costs = f"{a:.2f} | {b:.2f} | {a / b:.2f} | {syncs} | {other}"
    print(f"| {barrier} | {files} | {inherited} | {costs} |")
    storage.close()
    shutil.rmtree(base)


def _draft(store: hf.checkpoint.Store, sizes: list[int], kept: int = 0) -> hf.checkpoint.Draft:
    """An epoch that writes new files and keeps the oldest `kept` ones, as after a merge."""
    draft = store.draft()
    draft.set_source("orders", hf.checkpoint.CounterPosition(partitions={"0": store.epoch_next}))
    first = store.current is None
    old = store.current.files_of("totals")[:kept] if store.current else []
    draft.set_operator("totals", trace="latest", files=old)
    for partition, size in enumerate(sizes):
        draft.add_file(
            draft.write_run("totals", partition, secrets.token_bytes(size), snapshot=first)
        )
    return draft


# Open, list and recovery against the number of checkpoints


def bench_scale(work: Path, counts: tuple[int, ...]) -> None:
    print(
        "\n## List, read and recover with many retained checkpoints (goal: list 10,000 below 1 s)"
    )
    print("| retained | records read | list ms | show one ms | open for writing ms | commit ms |")
    print("|---|---|---|---|---|---|")
    for count in counts:
        root = Path(tempfile.mkdtemp(dir=work))
        settings = hf.Settings(retain=count, recovery_verify="shallow", exclusive=False)
        with hf.checkpoint.open_store(root, "p", topology=TOPOLOGY, settings=settings) as store:
            for epoch in range(count):
                store.commit(_draft(store, [100] if epoch == 0 else [], 1))
                if epoch % 64 == 0:
                    store.retain()
        listing, show, opening, commit = [], [], [], []
        for _ in range(5):
            reader = hf.checkpoint.read_store(root, "p")
            found = clocked(listing, reader.list)
            clocked(show, lambda: reader.manifest(found[0]))
            store = clocked(
                opening,
                lambda: hf.checkpoint.open_store(
                    root, "p", topology=TOPOLOGY, settings=settings, clean_up=False
                ),
            )
            draft = _draft(store, [], 1)
            clocked(commit, lambda: store.commit(draft))
            store.close()
        assert len(found) >= count
        state = load_catalog(reader.directory)
        print(
            f"| {count} | {state.head - state.base + 1} | {median_ms(listing):.1f} | {median_ms(show):.2f} "
            f"| {median_ms(opening):.1f} | {median_ms(commit):.2f} |"
        )
        shutil.rmtree(root)


# Manifests


def bench_manifest(count: int) -> None:
    print(f"\n## A manifest of {count} files")
    storage = MemoryStorage()
    store = hf.checkpoint.open_store(storage, "p", topology=TOPOLOGY)
    draft = store.draft()
    draft.set_source("orders", hf.checkpoint.CounterPosition(partitions={"0": 0}))
    draft.set_operator("totals", trace="latest")
    store.commit(draft)
    entries = [
        FileEntry(
            path=f"checkpoints/{draft.checkpoint}/operators/totals/partition-00000-{n:016x}.snap",
            size=123_456,
            sha256=secrets.token_hex(32),
            kind="snapshot",
            operator="totals",
            partition=n % 8,
            rows=10_000,
            hash_min=n,
            hash_max=2**64 - 1 - n,
        )
        for n in range(count)
    ]
    import msgspec

    manifest = msgspec.structs.replace(
        store.current,
        listed=entries,
        bytes_total=sum(e.size for e in entries),
        bytes_new=sum(e.size for e in entries),
    )
    encode, decode, valid = [], [], []
    from holdfast.format.validate import validate

    for _ in range(11):
        data = clocked(encode, lambda: manifest_bytes(manifest))
        back = clocked(decode, lambda: parse_manifest(data, "m", manifest.checkpoint))
        clocked(valid, lambda: validate(back))
    print(
        "| files | bytes | encode ms | decode and check ms | validate ms |\n|---|---|---|---|---|"
    )
    print(
        f"| {count} | {len(data)} | {median_ms(encode):.1f} | {median_ms(decode):.1f} | {median_ms(valid):.1f} |"
    )


# Requests on an object store


def bench_requests() -> None:
    print("\n## Requests and bytes of one commit on S3 (moto's server, real HTTP)")
    try:
        import boto3
        from moto.server import ThreadedMotoServer
    except ImportError as error:
        print(f"skipped: {error}")
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="y",
    ).create_bucket(Bucket="bench")
    from holdfast.testing import CountingStorage

    options = {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "x",
        "secret_access_key": "y",
        "client_options": {"allow_http": True},
    }
    storage = CountingStorage(hf.checkpoint.open_storage("s3://bench/root", options=options))
    print(
        "| new files | requests of the commit | bytes written | requests by kind |\n|---|---|---|---|"
    )
    with hf.checkpoint.open_store(storage, "p", topology=TOPOLOGY) as store:
        for files in (1, 4, 16):
            draft = _draft(store, [20_000] * files)
            storage.reset()
            store.commit(draft)
            print(
                f"| {files} | {storage.requests} | {storage.bytes_sent} | {dict(storage.operations)} |"
            )
    server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--dir", default=".bench", help="where to work; must be on the disk to measure"
    )
    args = parser.parse_args()
    work = Path(args.dir)
    work.mkdir(exist_ok=True)
    bench_commit(30 if args.quick else 150, work)
    bench_scale(work, (10, 1000) if args.quick else (10, 1000, 10_000))
    bench_manifest(10_000)
    bench_requests()


if __name__ == "__main__":
    main()
