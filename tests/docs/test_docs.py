"""Documents say what the code does: examples run, kinds are complete, packages are pinned."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from itertools import chain
from pathlib import Path

from tests.helpers.paths import ROOT
from tests.helpers.spec_store import write_spec_store

README = (ROOT / "README.md").read_text()
EXAMPLE = ROOT / "examples" / "crash_and_recover.py"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(text, language):
    return [body for kind, body in _FENCE.findall(text) if kind == language]


def _run_example(root):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(root)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_shows_the_crash_example_character_by_character():
    """The second code of the README is examples/crash_and_recover.py; the first one is run by
    tests/docs/test_readme.py."""
    assert _blocks(README, "python")[1] == EXAMPLE.read_text()


def test_readme_shows_the_output_that_the_example_really_prints(tmp_path):
    """The first run prints what the README shows; a second run goes on from the first."""
    first = _run_example(tmp_path)
    shown = next(block for block in _blocks(README, "text") if block.startswith("committed:"))
    assert first == shown
    again = _run_example(tmp_path)
    numbers = [int(n) for n in re.findall(r"(\d+) numbers", first + again)]
    assert numbers == [10, 10, 20, 30, 30, 40]


def test_the_page_of_errors_is_made_from_the_catalogue():
    """docs/reference/errors.md is exactly what tools/make_error_docs.py writes."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_error_docs.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_make_help_documents_every_target():
    """Every phony target of the Makefile is explained by `make help`."""
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split()
    done = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"^  make ([\w-]+) +\S", done.stdout, re.MULTILINE) == targets


def test_constraints_are_exact_and_name_no_address():
    """constraints.txt pins every package to one version, once, without addresses or hashes."""
    pins = _pins()
    names = [_canonical(line.split("==")[0]) for line in pins]
    assert [line for line in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][\w.]*", line)] == []
    assert len(names) == len(set(names))


def test_the_first_steps_run(tmp_path, monkeypatch):
    """All code of docs/guides/checkpoints.md runs in order, and the plan that it shows is the real one."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "guides" / "checkpoints.md").read_text()
    names = {}
    for block in _blocks(page, "python"):
        exec(compile(block, "docs/guides/checkpoints.md", "exec"), names)
    assert _blocks(page, "text")[0].strip() == str(names["plan"]).splitlines()[0]


def test_the_listing_of_files_on_disk_is_a_real_one(tmp_path):
    """docs/internals/files-on-disk.md lists exactly the files of the specification's store."""
    store = write_spec_store(tmp_path)
    real = sorted(p.relative_to(store).as_posix() for p in store.rglob("*") if p.is_file())
    shown = _blocks((ROOT / "docs" / "internals" / "files-on-disk.md").read_text(), "text")[
        0
    ].split()
    assert shown == ["tiny/", *real]


def _pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def _canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_everything_that_set_up_installs_is_pinned():
    """Every package that an extra asks for, and every one in our own environment, has a pin."""
    pinned = {_canonical(line.split("==")[0]): line.split("==")[1] for line in _pins()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {_canonical(re.match(r"[A-Za-z0-9._-]+", text)[0]) for text in asked} - {
        "holdfast-spark"
    }
    assert names - set(pinned) == set()
    if Path(sys.prefix) == ROOT / ".venv":
        there = {_canonical(d.name): d.version for d in metadata.distributions()}
        there.pop("holdfast", there.pop("holdfast-spark", None))
        assert {name: there[name] for name in there if pinned.get(name) != there[name]} == {}
