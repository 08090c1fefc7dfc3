"""What an executor is asked about itself. Travels by value: Holdfast may be what is missing there.

Invariants:
- Only the standard library is imported at the top. Everything else is tried, and its absence is an
  answer.
- What a probe puts into the store, it removes.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from importlib import import_module, metadata
from typing import Any


def describe(given: Mapping[str, Any]) -> str:
    """What is there, as one JSON text; it stays in its slot for a moment."""
    facts: dict[str, Any] = {
        "now": time.time(),  # noqa: TID251 - this clock is what is asked for
        "host": socket.gethostname(),
        "process": _executor_process(),
        "directory": os.getcwd(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: _installed(name) for name in given["packages"]},
        "holdfast": None,
        "holdfast_failed": None,
        "cache": given["cache"],
        "cache_free_bytes": None,
        "cache_writable": None,
        "store_ms": None,
        "store_failed": None,
        "store_shared": None,
    }
    if given["cache"]:
        nearest = _nearest(given["cache"])
        facts["cache_free_bytes"] = shutil.disk_usage(nearest).free
        facts["cache_writable"] = os.access(nearest, os.W_OK)
    try:
        import_module("holdfast.runtime.task")
        facts["holdfast"] = import_module("holdfast.version").__version__
    except Exception as error:  # noqa: BLE001 - whatever keeps it from being imported is told
        facts["holdfast_failed"] = f"{type(error).__name__}: {error}"[:300]
    if given["url"] and facts["holdfast"]:
        try:
            facts["store_ms"], facts["store_shared"] = _try_store(given)
        except Exception as error:  # noqa: BLE001 - told, with its remedy
            facts["store_failed"] = f"{type(error).__name__}: {error}"[:400]
    time.sleep(given["hold_s"])
    return json.dumps(facts)


def _installed(name: str) -> str | None:
    """The version of a package that can be imported here."""
    try:
        module = import_module(name)
    except Exception:  # noqa: BLE001 - a library of C that cannot be loaded is missing, too
        return None
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "unknown"))


def _executor_process() -> int:
    """The executor: the parent of the daemon that forked this worker."""
    try:
        with open(f"/proc/{os.getppid()}/stat", encoding="utf-8") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except (OSError, ValueError, IndexError):
        return os.getppid()


def _nearest(folder: str) -> str:
    """A directory, or the one in which it would be made."""
    folder = os.path.abspath(os.path.expanduser(folder))
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _try_store(given: Mapping[str, Any]) -> tuple[dict[str, float], bool]:
    """Milliseconds for a put, a get and a list; and whether the driver's marker is seen."""
    storage = import_module("holdfast.storage.open").open_storage(
        given["url"], create=False, options=given["options"] or None
    )
    ids, paths = import_module("holdfast.ids"), import_module("holdfast.format.paths")
    name = paths.temporary("", ids.RandomIds().token())
    took, seen = {}, storage.exists(given["marker"])  # also opens the connection
    try:
        for step, call in (
            ("put", lambda: storage.put_new(name, b"holdfast")),
            ("get", lambda: storage.get(name)),
            ("list", getattr(storage, "directories", tuple)),
        ):
            began = time.perf_counter()
            call()
            took[step] = round((time.perf_counter() - began) * 1e3, 2)
    finally:
        storage.delete(name)
    return took, seen
