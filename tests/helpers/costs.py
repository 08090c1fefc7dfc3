"""What each test costs: seconds on the clock, and of processors with all child processes.

    HOLDFAST_COSTS=costs.jsonl python -m pytest -p tests.helpers.costs tests
    python -m tests.helpers.costs costs.jsonl

On a busy machine seconds of processors tell more than seconds on the clock. The first line writes a
line of JSON for each test, the second adds them up by file.

Where the kernel lets us make a control group, it counts; this needs root. Elsewhere the seconds of
processes are added up, and those of workers that a JVM or a daemon has ended meanwhile are missing.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")
_GROUPS = Path("/sys/fs/cgroup/cpuacct")


def pytest_configure():
    """A control group for this process and all that it starts, where that is allowed."""
    group = _GROUPS / f"holdfast-tests-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()), encoding="utf-8")
    except OSError:
        return
    atexit.register(_leave, group)
    _group.append(group / "cpuacct.usage")


_group: list[Path] = []


def _leave(group: Path) -> None:
    """Give back to the parent group what still runs, and remove ours."""
    with suppress(OSError):
        for pid in (group / "cgroup.procs").read_text(encoding="utf-8").split():
            (_GROUPS / "cgroup.procs").write_text(pid, encoding="utf-8")
        group.rmdir()


def _processes() -> dict[int, tuple[int, str, float]]:
    """By process: its parent, its name, and seconds of it and of the children it has waited for."""
    found = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            text = Path(entry.path, "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        name, rest = (
            text[text.index("(") + 1 : text.rindex(")")],
            text[text.rindex(")") + 2 :].split(),
        )
        found[int(entry.name)] = (int(rest[1]), name, sum(map(int, rest[11:15])) / _TICKS)
    return found


def _used() -> tuple[float, set[int]]:
    """Seconds of processors of this process and all below it, and the JVMs among them."""
    processes = _processes()
    below: dict[int, list[int]] = defaultdict(list)
    for pid, (parent, _, _) in processes.items():
        below[parent].append(pid)
    total, jvms, waiting = 0.0, set(), [os.getpid()]
    while waiting:
        pid = waiting.pop()
        _, name, seconds = processes[pid]
        total += seconds
        if name == "java":
            jvms.add(pid)
        waiting.extend(below[pid])
    if _group:
        total = int(_group[0].read_text(encoding="utf-8")) / 1e9
    return total, jvms


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """One line for each test; what a shared fixture costs falls to the first test that asks for it."""
    begun, before = time.perf_counter(), _used()
    result = yield
    after = _used()
    line = {
        "test": item.nodeid,
        "wall": round(time.perf_counter() - begun, 3),
        "cpu": round(after[0] - before[0], 3),
        "jvms": len(after[1] - before[1]),
    }
    with open(os.environ["HOLDFAST_COSTS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return result


def main(path: str) -> None:
    """The table by file, dearest first."""
    files: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0])
    for text in Path(path).read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        row = files[line["test"].split("::")[0]]
        for place, value in enumerate((1, line["wall"], line["cpu"], line["jvms"])):
            row[place] += value
    files["in all"] = [sum(row[place] for row in files.values()) for place in range(4)]
    for name, (count, wall, cpu, jvms) in sorted(files.items(), key=lambda item: -item[1][2]):
        print(f"{cpu:8.1f} cpu {wall:8.1f} s {jvms:3.0f} JVMs {count:5.0f} tests  {name}")


if __name__ == "__main__":
    main(sys.argv[1])
