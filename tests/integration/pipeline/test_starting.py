"""What a session of Holdfast's own starts from: its daemon, and the archive of Spark's classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from holdfast.errors import IncompatibleError
from holdfast.spark import class_archive as classes
from holdfast.spark.java import require_java

pytestmark = pytest.mark.spark
SCRIPT = """
import json, sys
import pyspark
import holdfast as hf

home, config = sys.argv[1], json.loads(sys.argv[2])
pipe = hf.Pipeline("p", store=f"{home}/cp", partitions=2, spark_config=config)
rows = pipe.source("in", hf.sources.Generator({"k": "id % 3"}, rows=30, rows_per_epoch=15))
rows.group_by("k").agg(n=hf.count(), name="totals")
pipe.run()

def look(batches):
    import os, sys
    import pyarrow as pa
    import pyspark.worker
    for _ in batches:
        pass
    main = sys.modules["__main__"].__spec__.name
    loaded = "holdfast.runtime.task" in sys.modules
    facts = [main, pyspark.worker.__file__, str(loaded), str(os.getppid())]
    yield pa.RecordBatch.from_arrays([pa.array([*facts])], names=["fact"])

spark = pipe.session()
facts = [row[0] for row in spark.range(0, 1, 1, 1).mapInArrow(look, "fact string").collect()]
arguments = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
store = spark.sparkContext._jsc.sc().statusStore()
described = [store.job(n).description() for n in range(spark.sparkContext._jsc.sc().dagScheduler().nextJobId())]
ahead = sum("start the Python workers" in str(each) for each in described)
view = sorted(pipe.view("totals").to_arrow().to_pylist(), key=lambda row: row["k"])
print(json.dumps({"ahead": ahead, "facts": facts, "arguments": list(arguments), "view": view}))
spark.stop()
"""
VIEW = [{"k": n, "n": 10} for n in range(3)]


def run(home, *, java: str, cache, config=None):
    """The small pipeline in a process of its own: what it found out, or what it complained of."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(home), json.dumps({"spark.driver.memory": "1g", **(config or {})})],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "JDK_JAVA_OPTIONS": java, classes.CACHE_VARIABLE: str(cache)},
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr


QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def prepared():
    """The archive of these tests; `make ready` has made it already."""
    try:
        return classes.prepare(require_java()).path
    except IncompatibleError as error:
        if error.kind != "no_class_archive":
            raise
        pytest.skip(f"this Java writes no archive: {error}")


def test_a_damaged_archive_changes_nothing_and_workers_come_from_the_daemon(
    tmp_path, prepared
) -> None:
    """A megabyte lost in its middle: the pipeline runs all the same. Tasks find everything loaded."""
    path = tmp_path / "cache" / prepared.name
    path.parent.mkdir()
    data = bytearray(prepared.read_bytes())
    middle = len(data) * 3 // 10
    data[middle : middle + 2**20] = bytes(2**20)
    path.write_bytes(data)
    found = run(tmp_path, java=QUICK, cache=path.parent)
    assert isinstance(found, dict), found
    assert found["view"] == VIEW
    assert any(str(path) in argument for argument in found["arguments"])
    main, worker, loaded, _ = found["facts"]
    assert main == "holdfast.spark.daemon"
    assert loaded == "True"
    assert ".zip" not in worker
    assert found["ahead"] == 1, "workers are started while the first epoch is planned"


def test_a_prepared_archive_is_used(tmp_path, prepared) -> None:
    """A JVM that may not start without its archive starts: it is whole, and fits Spark's options."""
    config = {"spark.python.daemon.module": "pyspark.daemon"}
    found = run(tmp_path, java=f"{QUICK} -Xshare:on", cache=prepared.parent, config=config)
    assert isinstance(found, dict), found
    assert found["view"] == VIEW
    assert any(str(prepared) in argument for argument in found["arguments"])
    assert found["facts"][0] == "pyspark.daemon", "what the user sets counts"
