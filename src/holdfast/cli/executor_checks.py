"""What `doctor --master` and `submit` make of executors: one finding for all that say the same."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.app import F, option
from holdfast.cli.parts import Check, CheckStatus
from holdfast.cli.render import plural
from holdfast.cli.targets import is_object, root_location
from holdfast.errors import HoldfastError, InvalidInputError
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.spark.executors import Executor

_SKEW_S = 60.0
_FREE_LOW = 2_000_000_000
_SLOW_MS = 250.0
_SHOWN = 3


@dataclass(frozen=True)
class Expected:
    """What the driver has, and what the store asks for."""

    python: str = field(default_factory=platform.python_version)
    holdfast: str = __version__
    packages: dict[str, str | None] = field(default_factory=dict)
    remote: bool = False
    shipped: bool = False


def expected(names: Sequence[str], *, remote: bool, shipped: bool) -> Expected:
    """The versions of this process."""
    return Expected(
        packages={name: _version(name) for name in names}, remote=remote, shipped=shipped
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_Judgement = tuple[CheckStatus, str, str]


def judge(executors: Sequence[Executor], want: Expected) -> list[Check]:
    """Findings about all executors; pure."""
    topics: tuple[tuple[str, Callable[[Executor, Expected], Iterator[_Judgement]]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("holdfast", _holdfast),
        ("store", _store),
        ("clock", _clock),
        ("cache", _cache),
    )
    checks = [
        Check(
            name="executors",
            status="ok",
            found=f"{plural(len(executors), 'executor')}: {_names(executors)}",
        )
    ]
    if asked := latencies(executors):
        checks[0] = msgspec.structs.replace(checks[0], found=f"{checks[0].found}; store: {asked}")
    for topic, look in topics:
        groups: dict[_Judgement, list[Executor]] = {}
        for one in executors:
            for judgement in look(one, want):
                groups.setdefault(judgement, []).append(one)
        for (status, found, remedy), members in groups.items():
            whom = "all" if len(members) == len(executors) else _names(members)
            checks.append(
                Check(
                    name=f"executors: {topic}",
                    status=status,
                    found=f"{found} ({whom})",
                    remedy=remedy,
                )
            )
    return checks


def _names(executors: Sequence[Executor]) -> str:
    shown = ", ".join(one.name for one in executors[:_SHOWN])
    more = len(executors) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def _minor(text: str) -> str:
    return ".".join(text.split(".")[:2])


def _python(one: Executor, want: Expected) -> Iterator[_Judgement]:
    found = f"{one.python} at {one.executable}"
    if _minor(one.python) != _minor(want.python):
        yield (
            "problem",
            f"{found}, here {want.python}",
            "set PYSPARK_PYTHON on the workers to a Python of the driver's version",
        )
    else:
        yield "ok", found, ""


def _packages(one: Executor, want: Expected) -> Iterator[_Judgement]:
    extras = "spark,object" if want.remote else "spark"
    install = f"on every worker: {one.executable} -m pip install 'holdfast-spark[{extras}]'"
    missing = [
        name
        for name, there in one.packages.items()
        if there is None and (name != "obstore" or want.remote)
    ]
    if missing:
        yield "problem", f"cannot import {', '.join(missing)}", install
    different = [
        f"{name} {there}, here {here}"
        for name, there in one.packages.items()
        if there is not None and (here := want.packages.get(name)) is not None and there != here
    ]
    if different:
        yield "warning", "; ".join(different), f"{install}, with the driver's versions"
    if not missing and not different:
        same = ", ".join(f"{name} {there}" for name, there in one.packages.items() if there)
        yield "ok", f"{same}, as here", ""


def _holdfast(one: Executor, want: Expected) -> Iterator[_Judgement]:
    if one.holdfast is None:
        status: CheckStatus = "problem" if want.shipped else "warning"
        reason = one.holdfast_failed or "no reason given"
        remedy = (
            "install what is missing on the workers"
            if want.shipped
            else "`holdfast submit` ships it; `holdfast run --master` needs it on every worker"
        )
        yield status, f"cannot be imported: {reason}", remedy
    elif one.holdfast != want.holdfast:
        yield (
            "warning",
            f"{one.holdfast}, here {want.holdfast}",
            "`holdfast submit` ships the driver's version",
        )
    else:
        yield "ok", f"{one.holdfast}, as here", ""


def _store(one: Executor, want: Expected) -> Iterator[_Judgement]:
    if one.store_failed is not None:
        yield (
            "problem",
            one.store_failed,
            "every executor must reach the store: check its network and credentials"
            if want.remote
            else "use an object store, or a directory that all machines mount at the same path",
        )
    elif one.store_ms is not None and one.store_shared is False:
        yield (
            "problem",
            "does not see what the driver wrote: this directory is another one there",
            "use an object store, or a directory that all machines mount at the same path",
        )
    elif one.store_ms is not None:
        slow = max(one.store_ms.values()) > _SLOW_MS
        limit = f"over {_SLOW_MS:.0f} ms" if slow else f"each below {_SLOW_MS:.0f} ms"
        worst = ", ".join(one.store_ms)
        remedy = "a store in the region of the cluster makes epochs shorter" if slow else ""
        yield "warning" if slow else "ok", f"{worst}: {limit}", remedy


def _clock(one: Executor, want: Expected) -> Iterator[_Judgement]:
    del want
    if one.skew_s > _SKEW_S:
        yield (
            "warning",
            f"differs from the driver's by {one.skew_s:.0f} s",
            "let clocks be set by NTP: signed requests expire",
        )
    else:
        yield "ok", f"within {_SKEW_S:.0f} s of the driver's", ""


def _cache(one: Executor, want: Expected) -> Iterator[_Judgement]:
    if not want.remote or one.cache_free_bytes is None:
        return
    if one.cache_writable is False:
        yield (
            "problem",
            f"the directory {one.cache} cannot be written",
            "give the pipeline a directory that executors may write: Pipeline(cache=...)",
        )
    elif one.cache_free_bytes < _FREE_LOW:
        yield (
            "warning",
            f"{one.cache_free_bytes / 1e6:.0f} MB free for {one.cache}",
            "free some space, or give the pipeline another directory: Pipeline(cache=...)",
        )
    else:
        yield "ok", f"enough room for {one.cache}", ""


def executors_failed(error: Exception) -> Check:
    """A probe that Spark could not run, in its own words."""
    text = " ".join(str(error).split())
    version_differs = "PYTHON_VERSION_MISMATCH" in text
    reason = text[text.find("[PYTHON_VERSION_MISMATCH]") :] if version_differs else text
    return Check(
        name="executors",
        status="problem",
        found=f"no executor could run Python: {reason[:300]}",
        remedy="set PYSPARK_PYTHON (or spark.pyspark.python) to a Python of the driver's version "
        "that is on every worker",
    )


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """`--conf KEY=VALUE`, as Spark's own commands take it."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InvalidInputError(
                "a setting of Spark is written KEY=VALUE",
                kind="bad_option",
                option=key[:60],
                remedy="for example --conf spark.executor.memory=4g",
            )
        found[key.strip()] = value
    return found


def cluster_options(function: F) -> F:
    """`--master`, `--conf` and `--wait`."""
    master = option("--master", metavar="URL", help="Spark's master, or sc:// for Connect.")
    conf = option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeat.")
    wait = option(
        "--wait",
        "wait_s",
        type=click.FloatRange(min=1),
        default=60.0,
        metavar="SECONDS",
        help="How long to wait for executors.",
    )
    return master(conf(wait(function)))


def latencies(executors: Sequence[Executor]) -> str:
    """The store as executors see it: median and worst of each request."""
    asked = [one.store_ms for one in executors if one.store_ms is not None]
    parts = []
    for step in asked[0] if asked else ():
        times = sorted(each[step] for each in asked)
        parts.append(f"{step} {times[len(times) // 2]:.1f} ms (worst {times[-1]:.1f})")
    return ", ".join(parts)


@dataclass(frozen=True)
class Cluster:
    """Where executors are, how the session is set up, and how long to wait for them."""

    master: str
    config: dict[str, str]
    wait_s: float


def try_executors(
    cluster: Cluster, store: str | None, options: dict[str, Any]
) -> tuple[list[Check], list[dict[str, Any]]]:
    """Start a session on the master and ask every executor."""
    if not find_spec("pyspark"):
        return [
            Check(name="executors", status="skipped", found="pyspark is not installed here")
        ], []
    from holdfast.spark.executors import REMOTE, REQUIRED, look_at_executors
    from holdfast.spark.session import open_session

    place = None if store is None else root_location(store, options)
    remote = store is not None and is_object(store)
    config = {"spark.log.level": "OFF", **cluster.config}
    try:
        session = open_session(app="doctor", master=cluster.master, config=config)
        try:
            found = look_at_executors(session, place, timeout_s=cluster.wait_s)
        finally:
            session.stop()
    except HoldfastError as error:
        problem = Check(
            name="executors", status="problem", found=sentence(error), remedy=error.remedy or ""
        )
        return [problem], []
    except Exception as error:  # noqa: BLE001 - a Python of another version fails in Spark's own words
        return [executors_failed(error)], []
    wanted = expected((*REQUIRED, *REMOTE), remote=remote, shipped=False)
    return judge(found, wanted), [
        {"name": one.name, **msgspec.structs.asdict(one)} for one in found
    ]


def sentence(error: HoldfastError) -> str:
    """An error with its facts, on one line."""
    facts = " ".join(
        f"{k}={v}" for k, v in error.facts.items() if k not in ("retryable", "took_effect")
    )
    return f"{error.what} ({facts})" if facts else error.what
