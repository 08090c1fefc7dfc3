"""The same suite over every backend: what `holdfast.storage.base` promises."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.errors import (
    AlreadyExistsError,
    CorruptionError,
    HoldfastError,
    InvalidInputError,
    NotFoundError,
    StorageError,
)
from holdfast.storage import LocalStorage, MemoryStorage
from holdfast.storage import object_store as object_module
from tests.helpers.effort import examples

BACKENDS = ["local-auto", "local-fsync", "local-syncfs", "memory", "s3"]
ESCAPES = ["", "/", "/etc/x", "a//b", "a/", "../x", "a/../../x", "a/..", ".", "./a", "a/./b",
           "a\\b", "a\nb", "a\x00b", "\x7f", "a/\ud800", "x" * 1001]  # fmt: skip


@pytest.fixture(params=BACKENDS)
def storage(request, tmp_path):
    """One backend, empty."""
    kind, _, mode = request.param.partition("-")
    if kind == "local":
        made = LocalStorage(tmp_path / "root", barrier=mode)
    elif kind == "memory":
        made = MemoryStorage()
    else:
        made = request.getfixturevalue("s3").open(request.getfixturevalue("bucket"))
    yield made
    made.close()


def test_what_was_put_is_what_is_read(storage):
    """Whole objects, sizes and existence agree, also for an empty object and a binary one."""
    for path, data in (("p/a", b"one"), ("p/b/c", b""), ("p/d", bytes(range(256)) * 999)):
        storage.put_new(path, data)
        assert storage.get(path) == data
        assert storage.stat(path).size == len(data)
        assert storage.stat(path).path == path
        assert storage.exists(path)


def test_an_absent_object_is_not_found(storage):
    """Reading, ranging and asking for what is not there is one typed error; existing is False."""
    assert not storage.exists("p/none")
    for ask in (
        lambda: storage.get("p/none"),
        lambda: storage.stat("p/none"),
        lambda: storage.get_range("p/none", 0, 1),
    ):
        with pytest.raises(NotFoundError) as caught:
            ask()
        assert caught.value.kind == "not_found"
        assert "p/none" in str(caught.value)


def test_a_directory_is_not_an_object(storage):
    """A prefix that has objects below it does not exist as an object."""
    storage.put_new("p/a/b", b"x")
    assert not storage.exists("p/a")
    with pytest.raises(NotFoundError):
        storage.get("p/a")


def test_ranges_are_exact(storage):
    """A range is those bytes and no others; one that runs past the end is refused."""
    data = bytes(range(100))
    storage.put_new("p/a", data)
    for start, length in ((0, 100), (0, 0), (100, 0), (17, 5), (99, 1)):
        assert storage.get_range("p/a", start, length) == data[start : start + length]
    for start, length in ((0, 101), (100, 1), (-1, 2), (3, -1), (2**62, 1)):
        with pytest.raises(InvalidInputError) as caught:
            storage.get_range("p/a", start, length)
        assert caught.value.kind == "range_outside"


def test_a_limit_is_checked_before_reading(storage):
    """An object above the limit is a typed error with both sizes; at the limit it is read."""
    storage.put_new("p/a", b"12345")
    assert storage.get("p/a", bytes_max=5) == b"12345"
    with pytest.raises(CorruptionError) as caught:
        storage.get("p/a", bytes_max=4)
    assert caught.value.kind == "object_too_large"
    assert (caught.value.facts["size"], caught.value.facts["limit"]) == (5, 4)


def test_listings_are_in_order_of_path_and_end_at_the_directory(storage):
    """All objects below a prefix, sorted by path; a name that only begins alike is not below."""
    names = ["p/b", "p/a/z", "p/a-b", "p/a/b", "p/a.c", "p/ab/x", "q/a"]
    for name in names:
        storage.put_new(name, name.encode())
    listed = [*storage.list("p")]
    assert [entry.path for entry in listed] == sorted(n for n in names if n.startswith("p/"))
    assert all(entry.size == len(entry.path) for entry in listed)
    assert [entry.path for entry in storage.list("p/a")] == ["p/a/b", "p/a/z"]
    assert [entry.path for entry in storage.list("p/a/")] == ["p/a/b", "p/a/z"]
    assert [entry.path for entry in storage.list("")] == sorted(names)
    assert [*storage.list("nothing/here")] == []
    assert [*storage.list("p/b")] == []


def test_usage_counts_every_change(storage):
    """Usage follows puts, replacements, new objects and deletes, whether it was asked before or not."""
    assert storage.usage_bytes() == 0
    storage.put_new("p/a", b"12345")
    storage.put("p/b", b"123")
    storage.put("p/b", b"1")
    with storage.create("p/c") as writer:
        writer.write(b"12")
    assert storage.usage_bytes() == 8
    storage.delete("p/a")
    storage.delete("p/a")
    assert storage.usage_bytes() == 3 == sum(entry.size for entry in storage.list(""))


def test_put_replaces_the_whole_object(storage):
    """A put over a longer object leaves nothing of it, durable or not."""
    storage.put("p/a", b"a long text")
    storage.put("p/a", b"short", durable=False)
    assert storage.get("p/a") == b"short"


def test_put_new_never_overwrites(storage):
    """The second put-if-absent fails and the first one's bytes stay."""
    storage.put_new("p/a", b"first")
    with pytest.raises(AlreadyExistsError) as caught:
        storage.put_new("p/a", b"second")
    assert caught.value.kind == "already_exists"
    assert storage.get("p/a") == b"first"


def test_of_sixteen_racers_exactly_one_wins(storage):
    """Put-if-absent has one winner, every loser is told, and the winner's bytes are there."""
    barrier = threading.Barrier(16)

    def race(number):
        barrier.wait()
        try:
            storage.put_new("p/slot", b"%d" % number)
        except AlreadyExistsError:
            return None
        return number

    with ThreadPoolExecutor(16) as pool:
        winners = [n for n in pool.map(race, range(16)) if n is not None]
    assert len(winners) == 1
    assert storage.get("p/slot") == b"%d" % winners[0]
    assert [entry.path for entry in storage.list("p")] == ["p/slot"]


def test_replacing_is_atomic_for_readers(storage):
    """A reader beside a writer sees one whole value or another, never a mixture."""
    values = [bytes([digit]) * 70_000 for digit in range(4)]
    storage.put("p/a", values[0])
    stop = threading.Event()

    def write():
        number = 0
        while not stop.is_set():
            number += 1
            storage.put("p/a", values[number % 4], durable=False)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = {storage.get("p/a") for _ in range(25)}
    finally:
        stop.set()
        thread.join()
    assert seen <= set(values)


def test_a_created_object_is_whole_after_close(storage):
    """Many small and one large write add up; the barrier accepts it."""
    with storage.create("p/run") as writer:
        for number in range(50):
            assert writer.write(b"%04d" % number) == 4
        writer.write(memoryview(bytearray(b"z" * 1_200_000)))
    storage.barrier(["p/run"])
    assert storage.get("p/run") == b"".join(b"%04d" % n for n in range(50)) + b"z" * 1_200_000


def test_create_never_overwrites(storage):
    """A path that is taken is refused, at the latest when the writer is closed."""
    storage.put_new("p/a", b"first")
    with pytest.raises(AlreadyExistsError):
        with storage.create("p/a") as writer:
            writer.write(b"second")
    assert storage.get("p/a") == b"first"


def test_an_aborted_object_leaves_nothing(storage):
    """An exception inside the writer's context removes what was written."""
    with pytest.raises(ZeroDivisionError):
        with storage.create("p/run") as writer:
            writer.write(b"half")
            raise ZeroDivisionError
    assert not storage.exists("p/run")
    assert [*storage.list("")] == []


def test_a_closed_writer_takes_no_more(storage):
    """Writing after close or abort is an error, not a silent loss; closing twice is fine."""
    writer = storage.create("p/run")
    writer.write(b"all")
    writer.close()
    writer.close()
    with pytest.raises((StorageError, ValueError)):
        writer.write(b"more")
    assert storage.get("p/run") == b"all"
    other = storage.create("p/other")
    other.abort()
    with pytest.raises((StorageError, ValueError)):
        other.write(b"x")
    assert not storage.exists("p/other")


def test_deleting_is_idempotent_and_exact(storage):
    """An absent object can be deleted; a neighbour whose name begins alike stays."""
    for name in ("p/a", "p/a-b", "p/c/d"):
        storage.put_new(name, b"x")
    storage.delete("p/a")
    storage.delete("p/a")
    storage.delete("p/c")
    assert [entry.path for entry in storage.list("")] == ["p/a-b", "p/c/d"]
    storage.delete_many(["p/a-b", "p/never", "p/c/d"])
    assert [*storage.list("")] == []


def test_many_deletes_go_in_batches(storage):
    """More objects than one request takes are all deleted."""
    names = [f"p/{number:04d}" for number in range(60)]
    for name in names:
        storage.put(name, b"x", durable=False)
    storage.delete_many(names)
    assert [*storage.list("p")] == []


def test_a_barrier_over_nothing_is_fine_and_over_escapes_is_not(storage):
    """A barrier takes any number of paths, each checked."""
    storage.barrier([])
    storage.put_new("p/a", b"x")
    storage.barrier(["p/a", "p/a"])
    with pytest.raises(InvalidInputError):
        storage.barrier(["../x"])


@pytest.mark.parametrize("path", ESCAPES)
def test_no_path_escapes(storage, path):
    """Every operation refuses a path that could leave the root, before it touches anything."""
    for use in (
        storage.get,
        storage.stat,
        storage.exists,
        storage.create,
        storage.delete,
        storage.local_path,
        lambda p: storage.get_range(p, 0, 1),
        lambda p: storage.put_new(p, b"x"),
        lambda p: storage.put(p, b"x"),
        lambda p: storage.delete_many([p]),
        lambda p: storage.exclusive(p, "me"),
    ):
        with pytest.raises(InvalidInputError) as caught:
            use(path)
        assert caught.value.kind == "invalid_path"
        assert caught.value.remedy
    assert [*storage.list("")] == []


def test_the_address_is_for_people_and_has_no_secret(storage):
    """The address names the place, and none of the options."""
    assert isinstance(storage.url, str)
    assert "secret" not in storage.url
    assert "test" not in storage.url.split("/")[-1]


@settings(
    examples(15),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(data=st.data())
def test_a_random_history_agrees_with_a_dictionary(storage, data):
    """Puts, conditional puts, writers and deletes in any order leave what a dictionary has."""
    storage.delete_many([entry.path for entry in storage.list("")])
    model: dict[str, bytes] = {}
    names = st.sampled_from(["m/a", "m/b/c", "m/b/d", "m/e.f"])
    verbs = st.sampled_from(["put", "put_new", "create", "delete", "read"])
    for verb, name, value in data.draw(
        st.lists(st.tuples(verbs, names, st.binary(max_size=40)), max_size=8)
    ):
        if verb == "put":
            storage.put(name, value, durable=False)
            model[name] = value
        elif verb in ("put_new", "create"):
            try:
                if verb == "put_new":
                    storage.put_new(name, value)
                else:
                    with storage.create(name) as writer:
                        writer.write(value)
            except AlreadyExistsError:
                assert name in model
            else:
                assert name not in model
                model[name] = value
        elif verb == "delete":
            storage.delete(name)
            model.pop(name, None)
        else:
            try:
                assert storage.get(name) == model.get(name)
            except NotFoundError:
                assert name not in model
    assert {entry.path: storage.get(entry.path) for entry in storage.list("")} == model


# Object stores only


def test_an_object_above_the_conditional_limit_goes_in_parts(s3, bucket, monkeypatch):
    """Large objects are sent in parts, come back whole, and still never overwrite."""
    monkeypatch.setattr(object_module, "_CONDITIONAL_BYTES_MAX", 1_000)
    monkeypatch.setattr(object_module, "_SPOOL_BYTES", 2_000)
    storage = s3.open(bucket)
    data = bytes(range(256)) * 80_000
    with storage.create("p/run") as writer:
        for start in range(0, len(data), 1_000_000):
            writer.write(data[start : start + 1_000_000])
    assert storage.get("p/run") == data
    assert storage.get_range("p/run", 20_000_000, 256) == data[20_000_000:20_000_256]
    with pytest.raises(AlreadyExistsError):
        with storage.create("p/run") as writer:
            writer.write(b"x" * 2_000)


def test_a_bucket_that_does_not_exist_is_named(s3):
    """A lost bucket is an error of the environment, never an empty store."""
    storage = s3.open("no-such-bucket")
    for ask in (
        lambda: storage.get("p/a"),
        lambda: [*storage.list("")],
        lambda: storage.put_new("p/a", b"x"),
        lambda: storage.put("p/a", b"x"),
    ):
        with pytest.raises(HoldfastError) as caught:
            ask()
        assert caught.value.kind == "no_bucket", caught.value


def test_a_server_that_does_not_answer_is_unreachable(s3):
    """No connection is a retryable storage error, and nobody knows whether a put took effect."""
    import socket

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
        storage = s3.open("bucket", endpoint=endpoint)
        with pytest.raises(StorageError) as caught:
            storage.put_new("p/a", b"x")
        assert caught.value.kind == "unreachable"
        assert caught.value.retryable
        assert caught.value.took_effect is None
        with pytest.raises(StorageError):
            [*storage.list("p")]
        with pytest.raises(StorageError):
            storage.exists("p/a")


class _Refusing:
    """A server that refuses everything, with a body as S3 sends it."""

    def __enter__(self):
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        class Handler(BaseHTTPRequestHandler):
            def _refuse(self):
                self.rfile.read(int(self.headers.get("content-length") or 0))
                body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
                self.send_response(403)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _refuse  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_a_refused_request_is_denied_and_shows_no_secret(s3):
    """Refusal by the store is told apart from silence; the message has a remedy and no key."""
    with _Refusing() as endpoint:
        storage = s3.open("bucket", endpoint=endpoint, secret_access_key="hunter2")
        for ask in (
            lambda: storage.get("p/a"),
            lambda: storage.exists("p/a"),
            lambda: [*storage.list("")],
            lambda: storage.put_new("p/a", b"x"),
            lambda: storage.delete("p/a"),
        ):
            with pytest.raises(StorageError) as caught:
                ask()
            assert caught.value.kind == "denied", caught.value
            assert caught.value.remedy
            assert "hunter2" not in str(caught.value)


def test_a_foreign_key_that_cannot_be_listed_is_named(s3, bucket):
    """An object that another program named oddly is a clear error, never a shorter listing."""
    storage = s3.open(bucket)
    storage.put_new("p/a", b"x")
    s3.request("PUT", f"{bucket}/root/p//odd", b"y")
    with pytest.raises(StorageError) as caught:
        [*storage.list("p")]
    assert caught.value.kind == "foreign_key"
    assert not caught.value.retryable
    assert "p//odd" in str(caught.value)
    assert caught.value.remedy


def test_a_spool_that_cannot_grow_is_a_typed_error(s3, bucket, monkeypatch):
    """A full temporary directory while collecting an object is named as such; nothing is sent."""
    storage = s3.open(bucket)
    writer = storage.create("p/run")

    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(writer, "_file", Full())
    with pytest.raises(StorageError) as caught:
        writer.write(b"x")
    assert caught.value.kind == "spool_failed"
    writer.abort()
    assert not storage.exists("p/run")
