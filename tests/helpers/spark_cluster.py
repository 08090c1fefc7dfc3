"""A Spark standalone cluster for tests: a master and workers of the pip package, on loopback.

Every process is started here and stopped by its process id. Executors are children of their worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.paths import child_environment
from tests.helpers.servers import UnavailableError, free_port, listens, stop

_START_S = 90
MEMORY_MB = 1024
# Retries are Spark's default; speculation starts copies of tasks that take longer than the others.
DEFAULTS = {
    "spark.executor.memory": "640m",
    "spark.executor.cores": "1",
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.5",
    "spark.task.maxFailures": "4",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.log.level": "OFF",
}


@dataclass
class Cluster:
    """A running cluster. `environment` is what its workers, and so its executors, were given."""

    home: Path
    environment: dict[str, str]
    port: int = 0
    master: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Spark's address of the master."""
        return f"spark://127.0.0.1:{self.port}"

    @property
    def conf_dir(self) -> Path:
        """A `SPARK_CONF_DIR` with the defaults of applications on this cluster."""
        return self.home / "conf"

    def start_master(self) -> None:
        """Start the master and wait for it."""
        self.port = free_port()
        self.master = self._start(
            "master", "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(free_port()),
        )  # fmt: skip
        until = time.monotonic() + _START_S
        while not listens(self.port):
            if self.master.poll() is not None or time.monotonic() > until:
                raise UnavailableError(f"Spark's master does not start: {self._last('master')}")
            time.sleep(0.1)

    def start_worker(self) -> subprocess.Popen[bytes]:
        """Start one more worker with one core; the master hears of it a moment later."""
        name = f"worker-{len(self.workers)}"
        log = self.home / "master.log"
        before = _registered(log)
        process = self._start(
            name, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1",
            "-c", "1", "-m", f"{MEMORY_MB}m", "--work-dir", str(self.home / name),
            "--webui-port", str(free_port()), self.url,
        )  # fmt: skip
        self.workers.append(process)
        until = time.monotonic() + _START_S
        while _registered(log) == before:
            if process.poll() is not None or time.monotonic() > until:
                raise UnavailableError(f"Spark's worker does not start: {self._last(name)}")
            time.sleep(0.1)
        return process

    def executors(self) -> list[int]:
        """The process ids of all executors, by asking whose children they are."""
        alive = {process.pid for process in self.workers if process.poll() is None}
        return [
            pid for pid, (parent, command) in processes().items()
            if parent in alive and b"CoarseGrainedExecutorBackend" in command
        ]  # fmt: skip

    def kill_executor(self) -> bool:
        """kill -9 of one executor; False when there is none."""
        found = self.executors()
        if found:
            _kill(found[0])
        return bool(found)

    def kill_worker(self) -> None:
        """kill -9 of the oldest worker, whose executors end by themselves; another one takes over."""
        process = next(each for each in self.workers if each.poll() is None)
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End everything that was started here."""
        rest = self.executors()
        for process in [*self.workers, *([self.master] if self.master else [])]:
            stop(process)
        for pid in rest:
            if b"CoarseGrainedExecutorBackend" in processes().get(pid, (0, b""))[1]:
                _kill(pid)

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        import pyspark

        home = Path(pyspark.__file__).parent
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(home / "bin" / "spark-class"), *command], stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
                env={**self.environment, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
            )  # fmt: skip

    def _last(self, name: str) -> str:
        lines = (self.home / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no reason given"


def _registered(log: Path) -> int:
    return log.read_bytes().count(b"Registering worker")


def processes() -> dict[int, tuple[int, bytes]]:
    """Parent and command of every process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{name}/stat").read_text()
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                found[int(name)] = (int(status.rsplit(")", 1)[1].split()[1]), command)
    return found


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def spark_cluster(folder: Path, *, workers: int = 2, **environment: str) -> Iterator[Cluster]:
    """A master and its workers; their executors load the package under test and the helpers."""
    if not Path("/proc/self/stat").exists():
        raise UnavailableError("processes are found through /proc, which is not there")
    from holdfast.errors import HoldfastError
    from holdfast.spark.java import require_java

    try:
        java = require_java()
    except HoldfastError as error:
        raise UnavailableError(str(error)) from error
    given = child_environment(
        JAVA_HOME=java.home, PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"
    )
    cluster = Cluster(folder, given | environment)
    (folder / "conf").mkdir(parents=True)
    lines = [f"{key} {value}\n" for key, value in DEFAULTS.items()]
    (folder / "conf" / "spark-defaults.conf").write_text("".join(lines))
    with ExitStack() as ending:
        ending.callback(cluster.stop)
        cluster.start_master()
        for _ in range(workers):
            cluster.start_worker()
        yield cluster


@contextmanager
def connect_server(cluster: Cluster) -> Iterator[str]:
    """Spark Connect as an application on the cluster; its address."""
    import pyspark

    home, port = Path(pyspark.__file__).parent, free_port()
    with (cluster.home / "connect.log").open("ab") as log:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), "--master", cluster.url,
             "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
             "--conf", f"spark.connect.grpc.binding.port={port}",
             "--conf", "spark.connect.grpc.binding.address=127.0.0.1", "spark-internal"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**cluster.environment, "SPARK_HOME": str(home),
                 "SPARK_CONF_DIR": str(cluster.conf_dir)},
        )  # fmt: skip
    try:
        until = time.monotonic() + _START_S
        while not listens(port):
            if process.poll() is not None or time.monotonic() > until:
                last = (cluster.home / "connect.log").read_text(errors="replace")[-300:]
                raise UnavailableError(f"Spark Connect does not start: {last}")
            time.sleep(0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        stop(process)
