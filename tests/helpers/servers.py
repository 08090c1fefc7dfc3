"""Real servers for tests, built once into a cache and started on the loopback interface.

A server that cannot be built or started here is a reason to skip, and the reason is said.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_BUILD_S = 900
_START_S = 30
ACCESS, SECRET, BUCKET = "holdfast", "holdfast-secret", "holdfast"


class UnavailableError(Exception):
    """The server cannot be run here; says why."""


@dataclass(frozen=True)
class S3Server:
    """Where a server listens, and how to open it."""

    endpoint: str
    process: int

    @property
    def url(self):
        """The bucket."""
        return f"s3://{BUCKET}"

    @property
    def options(self):
        """Options for `open_storage`."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": ACCESS,
            "secret_access_key": SECRET,
            "client_options": {"allow_http": True},
        }

    @property
    def environment(self):
        """The same for a process that reads it from its environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ALLOW_HTTP": "true",
        }


def cache_directory():
    """Where built servers are kept: `HOLDFAST_CACHE`, or the user's cache."""
    given = os.environ.get("HOLDFAST_CACHE")
    base = Path(given) if given else Path.home() / ".cache" / "holdfast"
    return base / "servers"


def build_versitygw():
    """The program; built with Go where it is not in the cache yet, by one process at a time."""
    folder = cache_directory()
    version = VERSITYGW.rsplit("@", 1)[1]
    program = folder / f"versitygw-{version}"
    if program.exists():
        return program
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if go is None:
        raise UnavailableError("Go is not installed, so versitygw cannot be built")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not program.exists():
                _go_install(go, folder, program)
    except OSError as error:
        raise UnavailableError(f"the cache {folder} cannot be used: {error}") from error
    return program


def _go_install(go, folder, program):
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as name:
        environment = {**os.environ, "GOBIN": name, "GOFLAGS": "-modcacherw"}
        try:
            built = subprocess.run(
                [go, "install", VERSITYGW], env=environment, capture_output=True, text=True,
                timeout=_BUILD_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"building versitygw took more than {_BUILD_S} s") from error
        if built.returncode:
            last = (built.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UnavailableError(f"versitygw cannot be built: {last}")
        (Path(name) / "versitygw").rename(program)


def free_port():
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextmanager
def versitygw(folder):
    """An S3 server with its data below `folder`, stopped at the end by its process id."""
    program = build_versitygw()
    data, meta = Path(folder) / "data", Path(folder) / "meta"
    (data / BUCKET).mkdir(parents=True)
    meta.mkdir()
    port = free_port()
    log = (Path(folder) / "log").open("wb")
    process = subprocess.Popen(
        [str(program), "--port", f"127.0.0.1:{port}", "--access", ACCESS, "--secret", SECRET,
         "--quiet", "--keep-alive", "posix", "--sidecar", str(meta), str(data)],
        stdout=log, stderr=log, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait(process, port, Path(folder) / "log")
        yield S3Server(f"http://127.0.0.1:{port}", process.pid)
    finally:
        stop(process)
        log.close()


def stop(process):
    """End a process that was started here: asked first, killed after ten seconds."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def listens(port):
    """Whether somebody listens on a port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(process, port, log):
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise UnavailableError(f"versitygw ended at once: {' '.join(last)}")
        if listens(port):
            return
        time.sleep(0.05)
    raise UnavailableError(f"versitygw did not listen within {_START_S} s")


if __name__ == "__main__":  # `make ready` builds what tests need, so that no test waits for it
    try:
        build_versitygw()
    except UnavailableError as missing:
        print(f"tests that need an S3 server will be skipped: {missing}")
