"""Check Java, Spark, packages and, with a STORE, disk or object store and permissions.

Invariants:
- A store is tried under temporary names that Holdfast's own clean-up knows, and left as it was.
- Nothing is downloaded or installed. Spark is asked for its version, and started only on request.
- With a master, every executor is asked; nothing is judged by one of them.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from holdfast.cli.app import argument, command, flag
from holdfast.cli.app import option as named_option
from holdfast.cli.executor_checks import (
    Cluster,
    cluster_options,
    parse_conf,
    sentence,
    try_executors,
)
from holdfast.cli.output import Value, emit
from holdfast.cli.parts import Check, CheckStatus
from holdfast.cli.render import BAD, DIM, GOOD, WARN, Line, line, width, wrapped
from holdfast.cli.targets import (
    client_option,
    is_object,
    json_option,
    open_root,
    parse_options,
)
from holdfast.clock import SystemClock
from holdfast.errors import AlreadyExistsError, HoldfastError
from holdfast.format import paths
from holdfast.ids import RandomIds
from holdfast.spark.versions import RANGE, SUPPORTED, minor
from holdfast.storage.base import Storage
from holdfast.storage.local.disk import current_disk, filesystem_sync_reports_errors

_SYNCS = 21
_SYNC_SLOW_MS = 20.0
_SKEW_SECONDS = 60
_FREE_LOW = 1_000_000_000
_VOLATILE = ("tmpfs", "ramfs")
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs")
_STYLES = {"ok": GOOD, "warning": WARN, "problem": BAD, "skipped": DIM}


class Diagnosis(Value, frozen=True, kw_only=True, tag="holdfast.doctor/1", tag_field="schema"):
    """`holdfast doctor STORE`."""

    store: str | None
    ok: bool
    checks: list[Check]
    master: str | None = None
    executors: list[dict[str, Any]] = []


def diagnose(
    store: str | None,
    options: dict[str, Any],
    *,
    start_spark: bool = False,
    pipeline: str | None = None,
    cluster: Cluster | None = None,
) -> Diagnosis:
    """Look at the machine and, if they are given, at a store and at a cluster."""
    checks = [python(), *packages(), *spark(), java(), fast_paths(start=start_spark)]
    checks += connectors()
    if pipeline is not None:
        checks += source_lag(pipeline)
    if store is None:
        checks.append(Check(name="store", status="skipped", found="no STORE was given to try"))
    else:
        checks += try_store(store, options)
    executors: list[dict[str, Any]] = []
    if cluster is not None:
        reachable = not any(check.name == "store" and check.status == "problem" for check in checks)
        found, executors = try_executors(cluster, store if reachable else None, options)
        checks += found
    return Diagnosis(
        store=store,
        ok=not any(check.status == "problem" for check in checks),
        checks=checks,
        master=cluster.master if cluster is not None else None,
        executors=executors,
    )


def python() -> Check:
    """The interpreter."""
    return Check(
        name="python", status="ok", found=f"{platform.python_version()} at {sys.executable}"
    )


def packages() -> Iterator[Check]:
    """Extras: what is missing is needed only for some verbs."""
    for name, extra, why in (
        ("pyarrow", "state", "operator state"),
        ("duckdb", "sql", "SQL over state"),
        ("obstore", "object", "object stores"),
    ):
        found = _version(name)
        if found is None:
            yield Check(
                name=name,
                status="warning",
                found=f"not installed: needed for {why}",
                remedy=f"pip install 'holdfast-spark[{extra}]'",
            )
        else:
            yield Check(name=name, status="ok", found=found)


def _version(name: str) -> str | None:
    try:
        return version(name) if find_spec(name) is not None else None
    except (PackageNotFoundError, ValueError):
        return None


def spark() -> Iterator[Check]:
    """The engine; only `holdfast run` needs it."""
    found = _version("pyspark")
    if found is None:
        yield Check(
            name="spark",
            status="warning",
            found="not installed: needed to run pipelines",
            remedy="pip install 'holdfast-spark[spark]'",
        )
        return
    if minor(found) < minor(SUPPORTED[0]):
        yield Check(
            name="spark",
            status="problem",
            found=f"{found}, but {SUPPORTED[0]} is needed",
            remedy="pip install --upgrade 'holdfast-spark[spark]'",
        )
    elif minor(found) > minor(SUPPORTED[-1]):
        yield Check(
            name="spark",
            status="warning",
            found=f"{found}, newer than what was tried: {RANGE}",
            remedy="`holdfast doctor --spark` shows which fast paths work with it",
        )
    else:
        yield Check(name="spark", status="ok", found=f"{found}, supported: {RANGE}")


def fast_paths(*, start: bool) -> Check:
    """Shortcuts through private names of Spark: pipelines run without them, more slowly."""
    name = "fast paths"
    if not start or _version("pyspark") is None:
        return Check(name=name, status="skipped", found="give --spark to start Spark and try them")
    from holdfast.spark.canaries import try_fast_paths
    from holdfast.spark.session import open_session

    try:
        session = open_session(app="doctor", config={"spark.log.level": "OFF"})
        canaries = try_fast_paths(session)
        session.stop()
    except Exception as error:  # noqa: BLE001 - whatever keeps Spark from starting is told
        reason = sentence(error) if isinstance(error, HoldfastError) else type(error).__name__
        return Check(name=name, status="problem", found=f"Spark did not start: {reason}")
    off = [f"{canary.path} ({canary.reason})" for canary in canaries if canary.reason is not None]
    on = ", ".join(canary.path for canary in canaries if canary.reason is None)
    if not off:
        return Check(name=name, status="ok", found=f"on: {on}")
    return Check(
        name=name,
        status="warning",
        found=f"off: {'; '.join(off)}; on: {on or 'none'}",
        remedy="pipelines run all the same; a supported Spark runs them faster",
    )


def connectors() -> Iterator[Check]:
    """Sources and sinks of other packages: which there are, and which cannot be used."""
    from holdfast.connectors.plugins import GROUPS, faults, own_names, plugins

    for group in GROUPS:
        name, own, wrong = group.replace("holdfast.", ""), own_names(group), faults(group)
        offered = [f"{one.name} ({one.origin})" for one in plugins(group) if one.name not in wrong]
        found = ", ".join([*own, *offered])
        yield Check(name=name, status="ok", found=found)
        for connector, reason in wrong.items():
            yield Check(
                name=name,
                status="warning",
                found=f"{connector}: {reason}",
                remedy="pipelines that do not use it run all the same",
            )


def source_lag(file: str) -> Iterator[Check]:
    """What every source of a pipeline has left behind the newest checkpoint."""
    from holdfast.cli.commands.run import load_pipeline

    try:
        lags = load_pipeline(file).lag()
    except HoldfastError as error:
        yield Check(name="lag", status="problem", found=sentence(error), remedy=error.remedy or "")
        return
    for name, lag in lags.items():
        yield Check(name="lag", status="ok", found=f"{name}: {lag}")


def java() -> Check:
    """Java that Spark can run on: a problem only where Spark is installed."""
    from holdfast.spark.java import require_java

    bad: CheckStatus = "problem" if _version("pyspark") is not None else "warning"
    try:
        found = require_java()
    except HoldfastError as error:
        return Check(
            name="java",
            status=bad,
            found=sentence(error),
            remedy=error.remedy or "",
        )
    return Check(name="java", status="ok", found=f"{found.major} at {found.home}")


# The store


def try_store(address: str, options: dict[str, Any]) -> Iterator[Check]:
    """Open a root and try what commits need from it."""
    try:
        storage = open_root(address, options)
        reachable = _reach(storage)
    except HoldfastError as error:
        yield Check(
            name="store", status="problem", found=sentence(error), remedy=error.remedy or ""
        )
        return
    yield Check(name="store", status="ok", found=f"{storage.url}: {reachable}")
    if is_object(address):
        yield from _guarded("conditional put", lambda: conditional_put(storage))
        yield from _guarded("clock", lambda: clock_skew(storage))
        return
    root = os.path.abspath(os.path.expanduser(address.removeprefix("file://")))
    yield free_space(root)
    yield file_system(root)
    yield from _guarded("conditional put", lambda: conditional_put(storage))
    yield from _guarded("fsync", lambda: fsync_latency(root))


def _reach(storage: Storage) -> str:
    directories = getattr(storage, "directories", None)
    names = directories() if directories is not None else ()
    return f"readable, {len(names)} directories"


def _guarded(name: str, check: Callable[[], Check]) -> Iterator[Check]:
    try:
        yield check()
    except HoldfastError as error:
        yield Check(name=name, status="problem", found=sentence(error), remedy=error.remedy or "")
    except OSError as error:
        yield Check(
            name=name,
            status="problem",
            found=f"{error.strerror}",
            remedy="check owner and permissions of the directory",
        )


def conditional_put(storage: Storage) -> Check:
    """Put-if-absent, really tried: the second put of a name must fail."""
    path = paths.temporary("", RandomIds().token())
    start = time.perf_counter()
    storage.put_new(path, b"holdfast doctor")
    took = (time.perf_counter() - start) * 1e3
    try:
        try:
            storage.put_new(path, b"holdfast doctor, a second time")
        except AlreadyExistsError:
            whole = storage.get(path) == b"holdfast doctor"
        else:
            return Check(
                name="conditional put",
                status="problem",
                found="a second put of the same name was accepted: writers are not fenced",
                remedy="use a store that supports If-None-Match",
            )
    finally:
        storage.delete(path)
    if not whole:
        return Check(
            name="conditional put",
            status="problem",
            found="the refused put changed the object",
            remedy="use a store that supports If-None-Match",
        )
    return Check(name="conditional put", status="ok", found=f"works, {took:.1f} ms for one put")


def clock_skew(storage: Storage) -> Check:
    """The store's clock next to this machine's."""
    path = paths.temporary("", RandomIds().token())
    storage.put_new(path, b"holdfast doctor")
    try:
        there = storage.stat(path).modified_us
    finally:
        storage.delete(path)
    if there is None:
        return Check(name="clock", status="skipped", found="the store does not tell the time")
    skew = abs(SystemClock().wall_us() - there) / 1e6
    if skew > _SKEW_SECONDS:
        return Check(
            name="clock",
            status="warning",
            found=f"differs from the store's by {skew:.0f} s",
            remedy="let the machine's clock be set by NTP: signed requests expire",
        )
    return Check(name="clock", status="ok", found=f"within {skew:.1f} s of the store's")


def free_space(root: str) -> Check:
    """Room on the disk."""
    free = shutil.disk_usage(root).free
    if free < _FREE_LOW:
        return Check(
            name="disk",
            status="warning",
            found=f"{free / 1e6:.0f} MB free",
            remedy="free some space: a full disk stops commits",
        )
    return Check(name="disk", status="ok", found=f"{free / 1e9:.1f} GB free")


def file_system(root: str) -> Check:
    """What the directory lies on."""
    kind = _mounted(root)
    if kind in _VOLATILE:
        return Check(
            name="file system",
            status="warning",
            found=f"{kind}: gone after a restart",
            remedy="keep checkpoints on a disk",
        )
    if kind in _REMOTE:
        return Check(
            name="file system",
            status="warning",
            found=f"{kind}: locks and fsync depend on the server",
            remedy="prefer a local disk or an object store",
        )
    how = "reports" if filesystem_sync_reports_errors() else "does not report"
    return Check(name="file system", status="ok", found=f"{kind or 'unknown'}, syncfs {how} errors")


def _mounted(root: str) -> str:
    """The type of the file system, from the longest mount point above the directory."""
    best, kind = "", ""
    try:
        with open("/proc/mounts", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    for each in lines:
        fields = each.split()
        point = fields[1] if len(fields) > 2 else ""
        inside = root == point or root.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def fsync_latency(root: str) -> Check:
    """How long the disk takes to promise: a commit needs about six syncs."""
    times, disk = [], current_disk()
    with tempfile.NamedTemporaryFile(
        dir=root, prefix=f"{paths.TEMPORARY_PREFIX}{RandomIds().token()}"
    ) as file:
        for _ in range(_SYNCS):
            file.write(b"x" * 4096)
            file.flush()
            start = time.perf_counter()
            disk.sync(file.fileno())
            times.append((time.perf_counter() - start) * 1e3)
    middle, worst = statistics.median(times), max(times)
    text = f"median {middle:.2f} ms, worst {worst:.2f} ms of {_SYNCS}"
    if middle > _SYNC_SLOW_MS:
        return Check(
            name="fsync",
            status="warning",
            found=text,
            remedy="a faster disk makes commits faster; about six syncs each",
        )
    return Check(name="fsync", status="ok", found=text)


def diagnosis_lines(value: Diagnosis) -> Iterator[Line]:
    """What was looked at; what is wrong comes with its remedy."""
    longest = max((len(check.name) for check in value.checks), default=0)
    for check in value.checks:
        head = line((f"{check.status:<8}", _STYLES[check.status]), f" {check.name:<{longest}}  ")
        room = width() - 11 - longest
        found = wrapped(check.found, room=room)
        yield [*head, *found[0]]
        for more in found[1:]:
            yield [(" " * (11 + longest), ""), *more]
        if check.remedy:
            yield from wrapped(f"try: {check.remedy}", indent=" " * 9)
    if value.ok:
        yield line(("everything needed is here", GOOD))


@command(
    "holdfast doctor s3://bucket/checkpoints",
    "holdfast doctor --pipeline orders.py",
    "holdfast doctor s3://bucket/checkpoints --master spark://host:7077",
)
@argument(
    "store",
    "STORE",
    "Also try this root: writes, syncs and removes small files there.",
    required=False,
)
@flag("--spark", "start_spark", help="Also start Spark and try its fast paths: some 20 s.")
@named_option(
    "--pipeline", metavar="FILE", help="Also tell the lag of every source of this pipeline."
)
@cluster_options
@json_option
@client_option
def doctor(
    *,
    store: str | None,
    start_spark: bool,
    pipeline: str | None,
    master: str | None,
    conf: Sequence[str],
    wait_s: float,
    as_json: bool,
    option: Sequence[str],
) -> bool:
    """Check Java, Spark, packages and, with a STORE, disk or object store and permissions.

    With --master every executor is asked for its Python, packages, clock, disk, and the STORE.
    Exit 1 when something that is needed is missing or does not work.
    """
    cluster = None if master is None else Cluster(master, parse_conf(conf), wait_s)
    value = diagnose(
        store, parse_options(option), start_spark=start_spark, pipeline=pipeline, cluster=cluster
    )
    emit(value, diagnosis_lines, as_json=as_json)
    return not value.ok
