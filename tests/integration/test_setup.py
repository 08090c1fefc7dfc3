"""Set-up on a machine that has only Python and pip: real environments in copies of the project."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

pytestmark = pytest.mark.network
_PARTS = ("pyproject.toml", "constraints.txt", "LICENSE", "README.md", "tools", "src", "examples")
_OUTER = getattr(sys, "_base_executable", sys.executable)


def _copy(target: Path) -> Path:
    target.mkdir()
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in _PARTS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=skipped)
        else:
            shutil.copy(source, target / name)
    return target


def _call(project: Path, *prefix: str, python: str = _OUTER, **extra: str):
    command = [python, *prefix, str(project / "tools" / "setup.py"), "core"]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=240, env=_environment(extra)
    )


def _environment(extra):
    hidden = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    return {**{k: v for k, v in os.environ.items() if k not in hidden}, **extra}


def _stamp(project: Path):
    return json.loads((project / ".venv" / "holdfast-setup.json").read_text())


def _skip_without_index(done):
    if "package index cannot be reached" in done.stderr:
        pytest.skip(done.stderr.strip())


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project with a finished environment of level `core`."""
    project = _copy(tmp_path_factory.mktemp("setup") / "project")
    done = _call(project)
    _skip_without_index(done)
    assert done.returncode == 0, done.stderr
    return project


def test_set_up_makes_an_environment_in_which_the_example_runs(project, tmp_path):
    """A fresh copy gets an environment with pinned packages only, and the example runs in it."""
    python = project / ".venv" / "bin" / "python"
    example = [python, project / "examples" / "crash_and_recover.py", tmp_path / "store"]
    done = subprocess.run(
        example, capture_output=True, text=True, env=_environment({}), check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze", "--exclude-editable"],
        capture_output=True,
        text=True,
        check=True,
    )
    pins = set((ROOT / "constraints.txt").read_text().splitlines())
    assert set(listed.stdout.split()) <= pins


def test_a_finished_set_up_is_recognised_at_once(project):
    """The second call does nothing and takes well under a second."""
    before = (project / ".venv" / "holdfast-setup.json").stat().st_mtime_ns
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = _call(project)
        seconds.append(time.perf_counter() - start)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (project / ".venv" / "holdfast-setup.json").stat().st_mtime_ns == before
    assert min(seconds) < 1


def test_a_half_made_environment_is_made_again_by_one_of_two_calls(tmp_path):
    """After a kill in the middle, two calls at once wait for each other, and one begins anew."""
    project = _copy(tmp_path / "project")
    setup = [_OUTER, str(project / "tools" / "setup.py"), "core"]
    with subprocess.Popen(
        setup,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment({}),
    ) as running:
        until = time.perf_counter() + 60
        while not (project / ".venv" / "bin" / "python").exists():
            assert running.poll() is None
            assert time.perf_counter() < until
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
    assert _stamp(project)["state"] == "busy"
    (project / ".venv" / "left-over").write_text("of the first try")
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: _call(project), range(2)))
    for done in both:
        _skip_without_index(done)
    assert [done.returncode for done in both] == [0, 0], [done.stderr for done in both]
    assert "".join(done.stdout for done in both).count("set-up: ready") == 1
    assert _stamp(project)["state"] == "ready"
    assert not (project / ".venv" / "left-over").exists()


@pytest.mark.parametrize("lacking", [("venv", "ensurepip"), ("pip",)], ids="+".join)
def test_a_python_that_lacks_a_part_gets_its_environment_too(tmp_path, lacking):
    """Without venv and ensurepip, virtualenv makes it; without pip, ensurepip brings one."""
    project = _copy(tmp_path / "project")
    broken = tmp_path / "broken"
    for name in lacking:
        (broken / name).mkdir(parents=True)
        text = f"raise ModuleNotFoundError('No module named {name}')\n"
        (broken / name / "__init__.py").write_text(text)
    hook = tmp_path / "python"
    hook.write_text(f'#!/bin/sh\nPYTHONPATH="{broken}:$PYTHONPATH" exec "{_OUTER}" "$@"\n')
    hook.chmod(0o755)
    module = _load(project)
    real = module._run
    module.sys = type("Fake", (), {**vars(sys), "executable": str(hook)})
    for name in lacking:
        assert f"No module named {name}" in real([str(hook), "-m", name]).stderr
    try:
        module.make_venv(project / ".venv")
        module.seed(project / ".venv")
    except module.SetupError as error:
        if "package index" in str(error):
            pytest.skip(str(error))
        raise
    python = project / ".venv" / "bin" / "python"
    answer = real([str(python), "-m", "pip", "list", "--format=freeze"])
    pins = set((ROOT / "constraints.txt").read_text().splitlines())
    assert {pin.split("==")[0] for pin in answer.stdout.split()} == {"pip", "setuptools"}
    assert set(answer.stdout.split()) <= pins, answer.stderr


def _load(project: Path):
    path = project / "tools" / "setup.py"
    spec = importlib.util.spec_from_file_location("holdfast_tools_setup", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_unreachable_index_is_one_sentence(tmp_path):
    """Without a network, set-up says so in one line and names what to check."""
    project = _copy(tmp_path / "project")
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    done = _call(project, **nowhere, PIP_FIND_LINKS="", PIP_NO_CACHE_DIR="1", PIP_NO_INDEX="")
    assert done.returncode == 1
    assert re.fullmatch(r"set-up: the package index cannot be reached: .*\n", done.stderr)


def test_an_old_python_is_one_sentence(tmp_path):
    """A Python that is too old is told so before anything is made."""
    project = _copy(tmp_path / "project")
    old = "import sys; sys.version_info = (3, 10, 1); sys.argv = sys.argv[1:]; "
    run = "import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = _call(project, "-c", old + run)
    assert done.returncode == 1
    assert re.fullmatch(r"set-up: Holdfast needs Python 3\.11 or newer, .*\n", done.stderr)
    assert not (project / ".venv").exists()


def test_a_moved_project_gets_a_new_environment(project, tmp_path):
    """An environment that was copied along with its directory is not trusted: it names the old one."""
    moved = tmp_path / "moved"
    shutil.copytree(project, moved, symlinks=True)
    (moved / ".venv" / "left-over").write_text("of the old place")
    done = _call(moved)
    assert done.returncode == 0, done.stderr
    assert not (moved / ".venv" / "left-over").exists()
    place = [moved / ".venv" / "bin" / "python", "-c", "import holdfast; print(holdfast.__file__)"]
    found = subprocess.run(place, capture_output=True, text=True, check=True, env=_environment({}))
    assert found.stdout.strip().startswith(str(moved))
