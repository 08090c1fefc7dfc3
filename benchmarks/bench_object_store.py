"""Requests and bytes that commits and cold workers cost on an object store.

Run: python benchmarks/bench_object_store.py [--quick]

Counts what goes over the wire, by a proxy in front of a real S3 server (versitygw): method, what the
object is, bytes. No Spark and no stopwatch: the counts are the same on every machine. Epochs with
few rows are compared in the cost of their requests, epochs with many in their bytes.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from side_by_side import arguments

from holdfast.format.paths import classify
from holdfast.ids import RandomIds
from holdfast.state import RunCache, RunSource
from holdfast.storage import open_storage

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.helpers.rig import Rig
from tests.helpers.servers import UnavailableError, versitygw
from tests.helpers.state_world import World

_HOP = {"connection", "transfer-encoding", "content-length", "accept-encoding", "expect"}


class Meter(BaseHTTPRequestHandler):
    """Passes requests on and counts them."""

    protocol_version = "HTTP/1.1"
    target: ClassVar[str] = ""
    lock: ClassVar[threading.Lock] = threading.Lock()
    requests: ClassVar[Counter[tuple[str, str]]] = Counter()
    sent: ClassVar[Counter[str]] = Counter()

    def _pass(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else None
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        request = urllib.request.Request(
            self.target + self.path, data=body, headers=headers, method=self.command
        )
        try:
            answer: Any = urllib.request.urlopen(request, timeout=60)
        except urllib.error.HTTPError as error:
            answer = error
        data = b"" if self.command == "HEAD" else answer.read()
        kind = _meaning(self.path, self.command)
        with self.lock:
            self.requests[self.command, kind] += 1
            self.sent["up"] += size
            self.sent["down"] += len(data)
        self.send_response(answer.status)
        for key, value in answer.headers.items():
            if key.lower() not in _HOP:
                self.send_header(key, value)
        length = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass  # noqa: N815

    @classmethod
    def clear(cls) -> None:
        """Count from zero."""
        with cls.lock:
            cls.requests.clear()
            cls.sent.clear()

    @classmethod
    def show(cls, times: int) -> None:
        """Print what was counted, for each of so many times."""
        with cls.lock:
            print("| request | of | each time |\n|---|---|---|")
            for (method, what), count in sorted(cls.requests.items(), key=lambda one: -one[1]):
                print(f"| {method} | {what} | {count / times:.2f} |")
            print(f"| all | | {sum(cls.requests.values()) / times:.2f} |")
            up, down = (cls.sent[way] / times for way in ("up", "down"))
            print(f"\nbytes each time: {up:,.0f} up, {down:,.0f} down")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _meaning(path: str, method: str) -> str:
    parts = urllib.parse.urlsplit(path)
    query = urllib.parse.parse_qs(parts.query)
    if method == "GET" and ("list-type" in query or "prefix" in query):
        folder = query.get("prefix", [""])[0].split("/shop/")[-1].strip("/")
        return f"list of {re.sub(r'[0-9a-f-]{36}', 'ID', folder) or 'the root'}"
    name = urllib.parse.unquote(parts.path)
    inside = name.split("/shop/", 1)[-1] if "/shop/" in name else name.split("/workers/", 1)[-1]
    found = classify(inside)
    return str(found.kind) if found is not None else "other"


def commits(url: str, options: dict[str, Any], count: int) -> None:
    """What a commit costs that brings one run and whose sink records one outcome."""
    rig = Rig(open_storage(f"{url}/commits", options=options))
    store = rig.open()
    for _ in range(3):
        rig.commit(store)
    Meter.clear()
    for _ in range(count):
        rig.commit(store)
    print("\n### A commit: one run, one sink that records its outcome\n")
    Meter.show(count)
    store.close()


def workers(url: str, options: dict[str, Any], home: Path, epochs: int) -> None:
    """What workers ask for that open all runs of a partition: a new process in every epoch."""
    storage = open_storage(f"{url}/workers", options=options)
    world = World("latest", ["int64"], "text", seed=3, storage=storage)
    for _ in range(8):
        world.step(world.make_rows(2_000), 1)
    for name, kept in (("with the cache", True), ("without", False)):
        Meter.clear()
        for _ in range(epochs):
            cache = RunCache(home / "cache", bytes_max=1 << 30, ids=RandomIds()) if kept else None
            source = RunSource(storage, cache=cache)
            for run in world.runs:
                source.open(run, world.schema)
        print(
            f"\n### A new worker opens {len(world.runs)} runs in each of {epochs} epochs, {name}\n"
        )
        Meter.show(epochs)


def main() -> None:
    args = arguments(__doc__).parse_args()
    count = 10 if args.quick else 100
    home = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        with versitygw(home / "s3") as s3:
            Meter.target = s3.endpoint
            server = ThreadingHTTPServer(("127.0.0.1", 0), Meter)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            options = {**s3.options, "endpoint": f"http://127.0.0.1:{server.server_port}"}
            commits(s3.url, options, count)
            workers(s3.url, options, home, count)
            server.shutdown()
    except UnavailableError as reason:
        print(f"skipped: {reason}")
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
