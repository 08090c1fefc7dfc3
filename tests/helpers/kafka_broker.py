"""A real Kafka for tests, the demo and the benchmark: one node, loopback, started by process id.

As a program it runs a command with a broker of its own:
`python -m tests.helpers.kafka_broker COMMAND…`; the command finds it in HOLDFAST_KAFKA_BROKER.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.spark.java import find_java
from tests.helpers.maven_jars import jars
from tests.helpers.servers import UnavailableError

_START_S = 90
_HEAP = "512m"
GUEST_PASSWORD = "the-guests-own"


@dataclass
class KafkaBroker:
    """Where a broker listens; can be killed, and started again over the same data."""

    address: str
    secured: str
    folder: Path
    command: list
    extra: dict = field(default_factory=dict)
    process: subprocess.Popen | None = None

    def start(self):
        """Start it, and wait until it answers."""
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            cwd=self.folder, env=_environment(),
        )  # fmt: skip
        log.close()
        self._wait()

    def kill(self):
        """As when the machine of the broker dies; the data stays."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self):
        """Stop it by its process id."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()

    def _wait(self):
        from confluent_kafka.admin import AdminClient

        end = time.monotonic() + _START_S
        host, port = self.address.split(":")
        while time.monotonic() < end:
            if self.process.poll() is not None:
                last = (self.folder / "log").read_text(errors="replace").strip().splitlines()
                raise UnavailableError(f"Kafka ended at once: {' '.join(last[-1:])[:300]}")
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex((host, int(port))) == 0:
                    break
            time.sleep(0.1)
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, **self.extra})
        while time.monotonic() < end:
            try:
                if admin.list_topics(timeout=2).brokers:
                    return
            except Exception:  # noqa: BLE001 - it is still starting
                time.sleep(0.2)
        raise UnavailableError(f"Kafka did not answer within {_START_S} s")


def connector_jars():
    """Spark's Kafka connector, with what it needs, for the PySpark of the tests."""
    return [str(path) for path in jars("connector")]


def _environment():
    """The JVM of a broker takes nothing that is meant for the JVMs of Spark."""
    return {k: v for k, v in os.environ.items() if k not in ("JDK_JAVA_OPTIONS", "CLASSPATH")}


def _free_ports(count):
    with_ports = [socket.socket() for _ in range(count)]
    for listener in with_ports:
        listener.bind(("127.0.0.1", 0))
    ports = [listener.getsockname()[1] for listener in with_ports]
    for listener in with_ports:
        listener.close()
    return ports


@contextmanager
def kafka_broker(folder, properties=None, client=None):
    """A broker with its data below `folder`, stopped at the end.

    properties: settings of the broker on top of the usual ones. client: what a client needs to
    reach it, where it asks for more than an address.
    """
    try:
        import confluent_kafka  # noqa: F401 - the client has to be there, too
    except ImportError as error:
        raise UnavailableError("confluent-kafka is not installed") from error
    java = find_java()
    if java is None:
        raise UnavailableError("there is no Java to run Kafka with")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    port, controller, secured = _free_ports(3)
    config = folder / "server.properties"
    config.write_text(_properties(folder, port, controller, secured, properties or {}))
    path = ":".join(str(jar) for jar in jars("broker"))
    base = [
        str(java.home / "bin" / "java"), f"-Xmx{_HEAP}", f"-Xms{_HEAP}", "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1", "-cp", path,
    ]  # fmt: skip
    ident = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    made = subprocess.run(
        [*base, "kafka.tools.StorageTool", "format", "-t", ident, "-c", str(config)],
        capture_output=True, text=True, timeout=_START_S, check=False, env=_environment(),
        cwd=folder,
    )  # fmt: skip
    if made.returncode:
        raise UnavailableError(
            f"Kafka's data cannot be made: {(made.stderr or made.stdout)[-300:]}"
        )
    broker = KafkaBroker(
        f"127.0.0.1:{port}",
        f"127.0.0.1:{secured}",
        folder,
        [*base, "kafka.Kafka", str(config)],
        client or {},
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def _properties(folder, port, controller, secured, more):
    values = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},"
        f"SASL_PLAINTEXT://127.0.0.1:{secured}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{secured}",
        # A second door with a login: `guest` may do nothing, a client without one everything.
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_guest="{GUEST_PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "num.partitions": "2",
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # Retention and compaction happen while a test watches.
        "log.retention.check.interval.ms": "1000",
        "log.cleaner.backoff.ms": "500",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        "log.initial.task.delay.ms": "500",
        **more,
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def main(arguments):
    """Run a command with a broker."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="holdfast-kafka-") as folder,
            kafka_broker(folder) as broker,
        ):
            print(f"Kafka listens on {broker.address}", flush=True)
            known = {
                "HOLDFAST_KAFKA_BROKER": broker.address,
                "HOLDFAST_KAFKA_JARS": ",".join(connector_jars()),
            }
            return subprocess.run(arguments, env={**os.environ, **known}, check=False).returncode
    except UnavailableError as reason:
        print(f"no Kafka here: {reason}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
