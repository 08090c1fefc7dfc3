"""A pipeline that is submitted to a cluster: how it is started, killed, and what must come out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds

from holdfast.checkpoint import read_store, verify_store
from holdfast.storage import open_storage
from tests.helpers.paths import PROGRAMS
from tests.helpers.programs import cluster_pipeline_facts as facts
from tests.helpers.servers import S3Server
from tests.helpers.spark_cluster import Cluster

PROGRAM = PROGRAMS / "cluster_pipeline.py"
DEADLINE_S = 900


class Submission:
    """One `holdfast submit` in a session of its own, whose lines are read as they come."""

    def __init__(self, world: World, *more: str, master: str = "", command: str = "submit"):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", command, str(PROGRAM),
             "--master", master or world.cluster.url, *more],
            env=world.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line)

    @property
    def text(self) -> str:
        """Everything that it has said."""
        return "".join(self.lines)

    def epochs(self) -> int:
        """How many epochs it has told of."""
        return sum(line.lstrip().startswith("epoch ") for line in self.lines)

    def wait_for_epochs(self, count: int) -> None:
        """Until it has told of so many."""
        until = time.monotonic() + DEADLINE_S
        while self.epochs() < count:
            assert self.process.poll() is None, f"it ended by itself:\n{self.text[-3000:]}"
            assert time.monotonic() < until, f"no epoch:\n{self.text[-3000:]}"
            time.sleep(0.05)

    def wait(self) -> int:
        """Until it ends; its exit code."""
        code = self.process.wait(DEADLINE_S)
        self._reader.join(10)
        return code

    def kill(self) -> None:
        """kill -9 of the driver and its JVM, as when its machine dies."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class World:
    """Input, store and outputs of one pipeline on a cluster."""

    def __init__(self, cluster: Cluster, s3: S3Server, home: Path, *, rows: int = 1200) -> None:
        self.cluster, self.s3, self.home, self.rows = cluster, s3, home, rows
        self.root = f"{s3.url}/{uuid.uuid4().hex}"
        self.environment = {
            **cluster.environment,
            **s3.environment,
            "SPARK_CONF_DIR": str(cluster.conf_dir),
            "HOLDFAST_CLUSTER_HOME": str(home),
            "HOLDFAST_CLUSTER_OUT": f"{self.root}/out",
            "HOLDFAST_CLUSTER_ROWS": str(rows),
            "HOLDFAST_CLUSTER_STORE": f"{self.root}/store",
        }
        (home / "people").mkdir(parents=True)
        lines = "".join(json.dumps({"k": k, "name": f"p{k}"}) + "\n" for k in range(facts.PEOPLE))
        (home / "people" / "people.json").write_text(lines)

    def submit(self, *more: str, **where: str) -> Submission:
        """Start it."""
        return Submission(self, "--plain", "--wait", "240", *more, **where)

    def finish(self, *more: str, **where: str) -> Submission:
        """Run it until it ends well."""
        run = self.submit(*more, **where)
        try:
            assert run.wait() == 0, run.text[-3000:]
        finally:
            run.kill()
        return run

    def move_store(self, address: str) -> None:
        """Where the next start finds the store."""
        self.environment["HOLDFAST_CLUSTER_STORE"] = address

    def holdfast(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command of the command line."""
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *arguments], env=self.environment,
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip

    def _output(self, name: str):
        """The published rows of an output, read by PyArrow alone."""
        storage = open_storage(f"{self.root}/out/{name}", options=self.s3.options)
        with tempfile.TemporaryDirectory() as folder:
            files = []
            for entry in storage.list(""):
                parts = entry.path.split("/")
                if entry.path.endswith(".parquet") and not any(p[0] in "_." for p in parts):
                    path = Path(folder, *parts)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(storage.get(entry.path))
                    files.append(str(path))
            return ds.dataset(files).to_table().to_pylist()

    def check(self) -> None:
        """Each row once in the changelog, none lost; the totals are a dict's; the store is whole."""
        rows = facts.rows(self.rows)
        named: Counter = Counter()
        for row in self._output("named"):
            named[(row["id"], row["k"], row["x"], row["name"])] += row["_weight"]
        net = {row: count for row, count in named.items() if count}
        assert net == {(i, k, x, f"p{k}"): 1 for i, k, x in rows}
        totals = sorted((r["name"], r["n"], r["s"], r["d"]) for r in self._output("totals"))
        assert totals == facts.totals(rows)
        store, options = self.environment["HOLDFAST_CLUSTER_STORE"], None
        if "://" in store:
            options = self.s3.options
        assert verify_store(read_store(store, "p", options=options), deep=True).ok
