"""Golden checkpoints of a real Spark, unpacked into memory or onto disk."""

from __future__ import annotations

import itertools
import json
import zipfile

from holdfast.storage import open_storage
from tests.helpers.paths import TESTS

FOLDER = TESTS / "compat" / "guard"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
NAMES = sorted(EXPECTED)
_numbers = itertools.count()


def contents(name):
    """Files of a golden checkpoint by path."""
    with zipfile.ZipFile(FOLDER / f"{name}.zip") as archive:
        return {path: archive.read(path) for path in archive.namelist()}


def in_memory(name):
    """Address and storage of a fresh copy that lives in memory: fast enough for every byte."""
    address = f"memory://golden{next(_numbers)}"
    storage = open_storage(address)
    for path, data in contents(name).items():
        storage.put(path, data)
    return address, storage


def on_disk(name, folder):
    """A fresh copy on disk."""
    for path, data in contents(name).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder


def fresh_store():
    """Address of an empty store in memory."""
    return f"memory://store{next(_numbers)}"
