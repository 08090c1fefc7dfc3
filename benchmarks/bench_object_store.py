"""Requests and bytes that an epoch costs on an object store, with and without the cache of runs.

Run: python benchmarks/bench_object_store.py [--quick]

Counts what goes over the wire, by a proxy in front of a real S3 server (versitygw): method, what the
object is for, bytes. An aggregate of 10,000 keys in four partitions, 2,000 rows an epoch, output as
a changelog; the first epochs are left out. Counts do not depend on the machine.
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

from side_by_side import arguments, session

import holdfast as hf
from holdfast.format.paths import classify

sys.path.append(str(Path(__file__).resolve().parents[1]))
from tests.helpers.servers import UnavailableError, versitygw

_HOP = {"connection", "transfer-encoding", "content-length", "accept-encoding", "expect"}


class Meter(BaseHTTPRequestHandler):
    """Passes requests on and counts them."""

    protocol_version = "HTTP/1.1"
    target: ClassVar[str] = ""
    prefix: ClassVar[str] = ""
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

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _meaning(path: str, method: str) -> str:
    parts = urllib.parse.urlsplit(path)
    query = urllib.parse.parse_qs(parts.query)
    if method == "GET" and ("list-type" in query or "prefix" in query):
        folder = query.get("prefix", [""])[0].split("/cp/p/")[-1].strip("/")
        return f"list of {re.sub(r'[0-9a-f-]{36}', 'ID', folder) or 'the root'}"
    name = urllib.parse.unquote(parts.path)
    if "/cp/p/" in name:
        found = classify(name.split("/cp/p/", 1)[1])
        return str(found.kind) if found is not None else "other"
    return "output" if "/out/" in name else "other"


def measure(spark: Any, url: str, options: dict[str, Any], home: Path, *, cached: bool) -> None:
    """Run twelve epochs and print what the last eight have cost."""
    pipe = hf.Pipeline(
        "p",
        store=f"{url}/cp",
        spark=spark,
        partitions=4,
        storage_options=options,
        cache=home / "cache",
    )
    if not cached:
        # A cache that holds nothing: what every epoch would cost on new executors.
        object.__setattr__(pipe._place, "cache_bytes_max", 1)
    rows = pipe.source(
        "rows",
        hf.sources.Generator(
            {"k": "pmod(id * 7919, 10000)", "x": "id % 7"}, rows=24_000, rows_per_epoch=2_000
        ),
    )
    totals = rows.group_by("k").agg(n=hf.count(), s=hf.sum("x"), name="totals")
    pipe.sink("out", totals, hf.sinks.Parquet(f"{url}/out", storage_options=options))
    pipe.run(epochs=4)
    Meter.requests.clear()
    Meter.sent.clear()
    before = Counter(Meter.requests)
    pipe.run(epochs=8)
    with Meter.lock:
        found = Meter.requests - before
        sent = dict(Meter.sent)
    print(f"\n### {'with the cache' if cached else 'with an empty cache in every epoch'}\n")
    print("| request | what for | an epoch |\n|---|---|---|")
    for (method, what), count in sorted(found.items(), key=lambda each: -each[1]):
        print(f"| {method} | {what} | {count / 8:.2f} |")
    print(f"| all | | {sum(found.values()) / 8:.2f} |")
    print(f"\nbytes an epoch: {sent['up'] // 8:,} up, {sent['down'] // 8:,} down; with one start")


def main() -> None:
    args = arguments(__doc__).parse_args()
    spark = session(args, "2g")
    home = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        with versitygw(home / "s3") as s3:
            Meter.target = s3.endpoint
            server = ThreadingHTTPServer(("127.0.0.1", 0), Meter)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            options = {**s3.options, "endpoint": f"http://127.0.0.1:{server.server_port}"}
            for cached in (True, False):
                root = f"{s3.url}/{'cached' if cached else 'empty'}"
                measure(spark, root, options, home / f"cached-{cached}", cached=cached)
            server.shutdown()
    except UnavailableError as reason:
        print(f"skipped: {reason}")
    finally:
        shutil.rmtree(home, ignore_errors=True)
        spark.stop()


if __name__ == "__main__":
    main()
