"""The look at executors: the master's address, and what a probe says of the place where it runs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from holdfast.errors import InvalidInputError, StorageError
from holdfast.spark import probe
from holdfast.spark.executors import check_master
from holdfast.storage import open_storage
from tests.helpers.paths import SOURCE


def given(tmp_path, **more):
    return {
        "url": None, "options": {}, "cache": str(tmp_path / "not" / "yet"), "marker": ".hf-tmp-00",
        "packages": ["numpy", "no_such_package"], "hold_s": 0, **more,
    }  # fmt: skip


def test_an_address_that_nobody_listens_at_is_refused_at_once():
    """One answer of several masters is enough; other kinds of masters pass."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        open_port = listener.getsockname()[1]
        check_master(f"spark://127.0.0.1:{open_port}")
        check_master(f"sc://127.0.0.1:{open_port}/;token=secret")
        check_master(f"spark://127.0.0.1:9,127.0.0.1:{open_port}")
    for master in (f"spark://127.0.0.1:{open_port}", f"sc://127.0.0.1:{open_port}/;token=secret"):
        with pytest.raises(StorageError) as caught:
            check_master(master)
        assert caught.value.kind == "master_unreachable"
        assert "secret" not in str(caught.value)
    for master in ("local[2]", "yarn", "k8s://https://host:1", "local-cluster[1,1,1024]"):
        check_master(master)
    for master in ("spark://", "spark://:", "sc://host:port"):
        with pytest.raises(InvalidInputError):
            check_master(master)


def test_a_probe_says_what_is_there_and_what_is_missing(tmp_path):
    """Packages by version or None, room on the nearest directory, the store with three times."""
    open_storage(tmp_path / "store").put_new(".hf-tmp-00", b"")
    facts = json.loads(probe.describe(given(tmp_path, url=str(tmp_path / "store"))))
    assert facts["packages"]["no_such_package"] is None
    assert facts["packages"]["numpy"].split(".")[0].isdecimal()
    assert facts["python"].split(".")[:2] == [str(part) for part in sys.version_info[:2]]
    assert facts["cache_free_bytes"] > 0
    assert facts["cache_writable"] is True
    assert facts["holdfast"] is not None
    assert set(facts["store_ms"]) == {"put", "get", "list"}
    assert facts["store_shared"] is True
    assert [path.name for path in (tmp_path / "store").iterdir()] == [".hf-tmp-00"]


def test_a_probe_finds_a_store_that_is_another_directory_there(tmp_path):
    """Without the driver's marker the directory is not the one of the driver."""
    (tmp_path / "store").mkdir()
    facts = json.loads(probe.describe(given(tmp_path, url=str(tmp_path / "store"))))
    assert facts["store_shared"] is False
    facts = json.loads(probe.describe(given(tmp_path, url=str(tmp_path / "nowhere"))))
    assert facts["store_ms"] is None
    assert "does not exist" in facts["store_failed"]


def test_a_probe_needs_nothing_but_python(tmp_path):
    """Where no package at all is installed it answers, and says that all are missing."""
    code = (SOURCE / "holdfast" / "spark" / "probe.py").read_text(encoding="utf-8")
    asked = given(tmp_path, packages=["numpy", "pyarrow"])
    code += f"\nprint(describe({asked!r}))\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    facts = json.loads(done.stdout)
    assert facts["packages"] == {"numpy": None, "pyarrow": None}
    assert facts["holdfast"] is None
    assert "No module named 'holdfast'" in facts["holdfast_failed"]
