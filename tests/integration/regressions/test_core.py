"""What once went wrong in the store and the journal, each by the rule that holds since."""

from __future__ import annotations

import errno
import os
import signal
import socketserver
import threading
import time
from collections import Counter
from http.client import HTTPConnection
from urllib.parse import urlparse

import pytest

import holdfast as hf
from holdfast.cli.main import main
from holdfast.errors import FencedError, HoldfastError
from holdfast.journal import Durability, Event, JournalSettings, JournalWriter

TOPOLOGY = hf.checkpoint.topology(
    hf.checkpoint.Part(name="n", kind="source", what="counter"),
    hf.checkpoint.Part(name="t", kind="operator", what="s", inputs=["n"], stateful=True),
    hf.checkpoint.Part(name="k", kind="sink", what="x", inputs=["t"]),
)


class Told:
    """A sink that remembers what was published."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def commit(self, token) -> None:
        self.tokens.append(token.token)


SILENT = hf.checkpoint.topology(
    hf.checkpoint.Part(name="n", kind="source", what="counter"),
    hf.checkpoint.Part(name="t", kind="operator", what="s", inputs=["n"], stateful=True),
)


def step(store, who: str, sink: Told | None):
    """One checkpoint that moves the source by one, and its publication."""
    done = store.current.sources[0].position.partitions["0"] if store.current else 0
    draft = store.draft()
    draft.set_source("n", hf.checkpoint.CounterPosition(partitions={"0": done + 1}))
    draft.put_small("t", str(done + 1).encode())
    if sink is not None:
        draft.stage_sink("k", f"{who}: {done + 1}", replay="none")
    summary = store.commit(draft)
    if sink is not None:
        store.publish_pending({"k": sink})
    return summary


def test_a_lost_newest_record_is_noticed_and_its_files_stay(tmp_path) -> None:
    """While the hint names a record that is gone, no epoch is given out twice and nothing of it goes."""
    with hf.checkpoint.open_store(tmp_path, "p", topology=SILENT) as store:
        for _ in range(4):
            last = step(store, "a", None)
    newest = max((tmp_path / "p" / "catalog").iterdir())
    newest.unlink()
    files = tmp_path / "p" / "checkpoints" / str(last.checkpoint)
    assert files.is_dir()
    # Whatever lists it: the loss is told, by a finding and by the exit code of the plan.
    assert list(hf.checkpoint.verify_store(hf.checkpoint.read_store(tmp_path, "p")).all_findings())
    assert main(["recover", "--plan", str(tmp_path / "p")]) != 0
    try:
        with hf.checkpoint.open_store(tmp_path, "p", topology=SILENT) as store:
            assert store.epoch_next > last.epoch
    except HoldfastError as error:
        assert error.remedy
    assert files.is_dir(), "a rebuild could still have used these files"


@pytest.mark.parametrize("durability", [Durability.GROUP, Durability.BATCH, Durability.INTERVAL])
def test_a_failed_write_of_the_mark_never_leaves_a_writer_that_promises_too_much(
    tmp_path, durability, monkeypatch
) -> None:
    """After a mark that could not be written, an append is durable soon, or it is refused by name."""
    real, failures = os.pwrite, [0]

    def pwrite(fd, data, offset):
        if failures[0] and sum(map(len, [data])) <= 64:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data, offset)

    one = [Event(entity="a", kind="k", payload="{}")]
    writer = JournalWriter(tmp_path / "j", JournalSettings(durability=durability))
    writer.append(one)
    writer.flush()
    monkeypatch.setattr(os, "pwrite", pwrite)
    failures[0] = 1
    for _ in range(4):
        try:
            writer.append(one)
            assert writer.wait_durable(writer.accepted, timeout_ms=5_000)
        except HoldfastError as error:
            assert error.kind
    try:
        writer.close()
    except HoldfastError as error:
        assert error.kind


def test_two_sleeping_writers_and_a_compaction_cannot_break_the_fence(tmp_path) -> None:
    """Each writer that was overtaken is told so; what is published is in the catalog."""

    def opened():
        settings = hf.Settings(exclusive=False)
        return hf.checkpoint.open_store(
            tmp_path, "p", topology=TOPOLOGY, takeover=True, settings=settings
        )

    sink = Told()
    step(opened(), "a", sink)
    asleep = [opened() for _ in range(3)]
    rightful = opened()
    step(rightful, "b", sink)
    step(rightful, "b", sink)
    rightful.compact()
    for number, zombie in enumerate(asleep):
        with pytest.raises(FencedError):
            step(zombie, f"z{number}", sink)
    step(rightful, "b", sink)
    for number, zombie in enumerate(asleep):
        with pytest.raises(FencedError):
            step(zombie, f"again z{number}", sink)
    assert sink.tokens == ["a: 1", "b: 2", "b: 3", "b: 4"]


def test_a_plan_while_a_healthy_writer_runs_never_refuses(tmp_path) -> None:
    """What was retired while one looked is looked at again: the plan says resume."""
    seconds = 4.0
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        signal.alarm(60)
        settings = hf.Settings(retain=2)
        store = hf.checkpoint.open_store(tmp_path, "p", topology=TOPOLOGY, settings=settings)
        until = time.monotonic() + seconds + 1.5
        while time.monotonic() < until:
            step(store, "w", Told())
            store.retain()
        os._exit(0)
    seen: Counter = Counter()
    while not (tmp_path / "p" / "_latest").exists():
        time.sleep(0.01)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            plan = hf.checkpoint.recovery_plan(tmp_path, "p", topology=TOPOLOGY)
            seen[plan.mode if plan.refusal is None else plan.refusal.kind] += 1
        except HoldfastError as error:
            seen[error.kind] += 1
    os.waitpid(child, 0)
    assert set(seen) == {"resume"}, seen


class _Forgetful(socketserver.StreamRequestHandler):
    """Hands requests on; answers the first put of a run with 500 after it was applied."""

    target = ""
    hits = [0]

    def handle(self) -> None:
        first = self.rfile.readline().decode("latin-1").split()
        headers = {}
        while line := self.rfile.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers[name] = value.strip()
        length = next((int(v) for n, v in headers.items() if n.lower() == "content-length"), 0)
        body = self.rfile.read(length) if length else b""
        server = urlparse(self.target)
        connection = HTTPConnection(server.hostname, server.port, timeout=20)
        connection.request(first[0], first[1], body=body or None, headers=headers)
        answer = connection.getresponse()
        data, status, told = answer.read(), answer.status, answer.getheaders()
        connection.close()
        if first[0] == "PUT" and ".snap" in first[1] and not self.hits[0]:
            self.hits[0] = 1
            data, status, told = b"", 500, []
        self.wfile.write(f"HTTP/1.1 {status} X\r\n".encode())
        for name, value in told:
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.wfile.write(f"{name}: {value}\r\n".encode("latin-1"))
        size = len(data) if first[0] != "HEAD" else answer.getheader("content-length", "0")
        self.wfile.write(f"Content-Length: {size}\r\nConnection: close\r\n\r\n".encode())
        self.wfile.write(data)


def test_a_put_of_a_run_that_was_applied_but_answered_with_500_succeeds(
    s3_server, s3_options, s3_url
) -> None:
    """The client tries again and meets its own object: the same bytes are no conflict."""
    handler = type("Handler", (_Forgetful,), {"target": s3_server, "hits": [0]})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = {**s3_options, "endpoint": f"http://127.0.0.1:{server.server_address[1]}"}
        with hf.checkpoint.open_store(s3_url, "p", topology=TOPOLOGY, options=options) as store:
            draft = store.draft()
            draft.set_source("n", hf.checkpoint.CounterPosition(partitions={"0": 1}))
            run = draft.write_run("t", 0, b"rows", snapshot=True, rows=1)
            draft.set_operator("t", trace="latest", files=[run], rows=1, keys=1)
            draft.stage_sink("k", "a: 1", replay="none")
            assert store.commit(draft).epoch == 0
        server.shutdown()
    assert handler.hits == [1]
