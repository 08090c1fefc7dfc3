"""A put that was applied and answered with an error: the retry knows its own first try."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

import pytest

from holdfast.checkpoint import open_storage, read_store
from holdfast.checkpoint.artifact import ArtifactWriter
from holdfast.errors import AlreadyExistsError, StorageError
from holdfast.storage import MemoryStorage
from holdfast.testing import WrappedStorage
from tests.helpers.scenes import PIPELINE, World, assert_verified, told


class Proxy:
    """Passes requests on; the n-th PUT is applied and answered with 500."""

    def __init__(self, endpoint):
        self._target = urlsplit(endpoint)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.nth, self.times, self.seen = 0, 1, []
        self._lock = threading.Lock()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            with contextlib.suppress(OSError):
                connection, _ = self._server.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()
                continue
            return

    def _one(self, connection):
        with connection, contextlib.suppress(OSError, ValueError):
            file = connection.makefile("rb")
            head = []
            while (line := file.readline()) not in (b"\r\n", b""):
                head.append(line)
            if not head:
                return
            length = 0
            for line in head:
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            body = file.read(length)
            kept = [line for line in head if not line.lower().startswith(b"connection:")]
            kept.insert(1, b"Connection: close\r\n")
            address = (self._target.hostname, self._target.port)
            with socket.create_connection(address) as upstream:
                upstream.sendall(b"".join(kept) + b"\r\n" + body)
                answer = b"".join(iter(lambda: upstream.recv(65_536), b""))
            if head[0].startswith(b"PUT") and self._fails(head[0].split()[1].decode()):
                answer = b"HTTP/1.1 500 X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            connection.sendall(answer)

    def _fails(self, path):
        with self._lock:
            self.seen.append(path)
            return self.nth <= len(self.seen) < self.nth + self.times

    def fail(self, nth, times=1):
        with self._lock:
            self.nth, self.times, self.seen = nth, times, []

    def close(self):
        self._server.close()


@pytest.fixture
def proxy(s3_server):
    made = Proxy(s3_server)
    yield made
    made.close()


def test_every_put_of_a_store_knows_its_own_first_try(proxy, s3_url, s3_options):
    """Whichever PUT is applied and answered with 500, the work goes on, and nothing is twice."""
    options = {**s3_options, "endpoint": proxy.endpoint}
    for nth in range(1, 100):
        url = f"{s3_url}/{nth}"
        proxy.fail(nth)
        world = World(open_storage(url, options=options))
        world.open()
        world.commit()
        world.outcome()
        world.store.pin("held")
        whole = open_storage(url, options=s3_options)
        reader = read_store(whole, PIPELINE)
        assert told(reader, reader.resolve("latest")) == (0,), (nth, proxy.seen)
        assert [pin.label for pin in reader.pins()] == ["held"]
        assert_verified(whole)
        if len(proxy.seen) < nth:
            assert nth > 8
            return
    pytest.fail("the work never ran through undisturbed")


def test_a_large_object_in_parts_knows_its_own_first_try(proxy, s3_url, s3_options, monkeypatch):
    """What is too large for one conditional put is compared as well."""
    from holdfast.storage import object_store as backend

    monkeypatch.setattr(backend, "_CONDITIONAL_BYTES_MAX", 1_000)
    monkeypatch.setattr(backend, "_PART_BYTES", 5 * 1024 * 1024)
    storage = open_storage(s3_url, options={**s3_options, "endpoint": proxy.endpoint})
    data = bytes(range(256)) * 4 * 1024 * 6
    for nth in (1, 2):
        proxy.fail(nth)
        with ArtifactWriter(storage, f"{PIPELINE}/large-{nth}") as writer:
            writer.write(data)
        assert storage.get(f"{PIPELINE}/large-{nth}") == data


class Applied(WrappedStorage):
    """Closing takes effect, and then fails as a client's own retry or a lost reply does."""

    def __init__(self, inner, error):
        super().__init__(inner)
        self.error = error

    def around(self, operation, path, call, size=0):
        answer = call()
        if operation == "close":
            raise self.error
        return answer


LOST = StorageError("no answer", kind="unreachable", took_effect=None)
EXISTS = AlreadyExistsError("object exists already")


@pytest.mark.parametrize("error", [LOST, EXISTS])
def test_a_file_that_is_there_with_these_bytes_was_written(error):
    """Its size and digest are compared."""
    storage = Applied(MemoryStorage(), error)
    with ArtifactWriter(storage, "p/a") as writer:
        writer.write(b"rows")
    assert storage.get("p/a") == b"rows"


@pytest.mark.parametrize("other", [b"ROWS", b"rows and more", b""])
def test_a_file_of_somebody_else_is_not_taken_for_ours(other):
    """Another content under the name is what the error says."""
    inner = MemoryStorage()
    storage = Applied(inner, EXISTS)
    writer = ArtifactWriter(storage, "p/a")
    writer.write(b"rows")
    original = inner.put_new

    def put_other(path, data):
        del data
        original(path, other)

    inner.put_new = put_other
    with pytest.raises(AlreadyExistsError):
        writer.close()


def test_a_refusal_is_not_resolved():
    """What says that nothing happened is believed, whatever is there."""
    refusal = StorageError("denied", kind="denied", took_effect=False)
    storage = Applied(MemoryStorage(), refusal)
    writer = ArtifactWriter(storage, "p/a")
    writer.write(b"rows")
    with pytest.raises(StorageError) as caught:
        writer.close()
    assert caught.value.kind == "denied"
