"""Pinned jars from the Maven repository that this machine is configured for, kept in a cache.

Invariants:
- No address stands here. `HOLDFAST_MAVEN` names a repository; without it the mirrors of Maven's
  settings do, and without those the default that an installed Maven brings.
- A jar is used only with the digest that `kafka_jars.txt` pins; a download becomes visible whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.helpers.servers import UnavailableError, cache_directory

_PINS = Path(__file__).with_name("kafka_jars.txt")
_TIMEOUT_S = 60


def pins(section):
    """(group, artifact, version, digest) of one section of the list."""
    found, current = [], ""
    for line in _PINS.read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif line and not line.startswith("#") and current == section:
            coordinate, digest = line.split()
            found.append((*coordinate.split(":"), digest))
    return found


def jars(section):
    """The jars of a section as paths; what is not in the cache yet is fetched."""
    wanted = pins(section)
    folder = cache_directory().parent / "jars"
    paths = [folder / f"{artifact}-{version}.jar" for _, artifact, version, _ in wanted]
    if all(path.exists() for path in paths):
        return paths
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock, ThreadPoolExecutor(4) as pool:
            fcntl.flock(lock, fcntl.LOCK_EX)
            base = repository()
            missing = [(pin, path) for pin, path in zip(wanted, paths, strict=True)]
            list(pool.map(lambda job: _fetch(base, *job), missing))
    except OSError as error:
        raise UnavailableError(f"jars of {section} cannot be fetched: {error}") from error
    return paths


def _fetch(base, pin, path):
    if path.exists():
        return
    group, artifact, version, digest = pin
    url = f"{base}/{group.replace('.', '/')}/{artifact}/{version}/{path.name}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:
            data = reply.read()
    except (urllib.error.URLError, TimeoutError) as error:
        raise UnavailableError(
            f"{path.name} cannot be fetched by Maven's address: {error}"
        ) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise UnavailableError(f"{path.name} has another digest than kafka_jars.txt pins")
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_bytes(data)
    part.rename(path)


def repository():
    """The address of the repository."""
    given = os.environ.get("HOLDFAST_MAVEN")
    if given:
        return given.rstrip("/")
    program = shutil.which("mvn")
    home = Path(program).resolve().parent.parent if program else None
    settings = [Path.home() / ".m2" / "settings.xml"]
    settings += [home / "conf" / "settings.xml"] if home else []
    found = next(filter(None, map(_mirror, settings)), None) or (_default(home) if home else None)
    if found is None:
        raise UnavailableError(
            "no Maven is configured here: set HOLDFAST_MAVEN to the address of a repository"
        )
    return found.rstrip("/")


def _mirror(settings):
    """The mirror of the central repository in a settings file."""
    if not settings.is_file():
        return None
    for mirror in _elements(ET.parse(settings).getroot(), "mirror"):
        parts = {part.tag.rsplit("}", 1)[-1]: (part.text or "").strip() for part in mirror}
        names = parts.get("mirrorOf", "").split(",")
        if parts.get("blocked") != "true" and {"*", "central", "external:*"} & set(names):
            return parts.get("url")
    return None


def _default(home):
    """The repository that every project of an installed Maven inherits."""
    for archive in sorted((home / "lib").glob("maven-model-builder-*.jar")):
        with zipfile.ZipFile(archive) as inside:
            for name in inside.namelist():
                if name.endswith("/pom-4.0.0.xml"):
                    found = [*_elements(ET.fromstring(inside.read(name)), "repository")]
                    return next(p.text for p in found[0] if p.tag.endswith("url"))
    return None


def _elements(root, name):
    return (part for part in root.iter() if part.tag.rsplit("}", 1)[-1] == name)
