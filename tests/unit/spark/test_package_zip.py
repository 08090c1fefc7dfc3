"""Holdfast in a zip, as executors get it."""

from __future__ import annotations

import subprocess
import sys

from holdfast.spark.package_zip import write_package


def test_the_package_works_from_a_zip_and_comes_before_an_installed_one(tmp_path):
    """Everything that a task imports is in it, with the lists of lazy names."""
    path = write_package(str(tmp_path))
    code = (
        "import sys\n"
        "import holdfast.runtime.task, holdfast, holdfast.state, holdfast.storage\n"
        "assert holdfast.state.RunCache and holdfast.Pipeline and dir(holdfast.checkpoint)\n"
        "files = [m.__file__ for n, m in sys.modules.items() if n.startswith('holdfast.')]\n"
        f"assert files and all(f.startswith({path!r}) for f in files), files\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PYTHONPATH": path})


def test_the_same_package_is_the_same_bytes(tmp_path):
    """Spark and its caches can tell by the content whether it changed."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = (write_package(str(tmp_path / name)) for name in ("a", "b"))
    with open(one, "rb") as first, open(two, "rb") as second:
        assert first.read() == second.read()
