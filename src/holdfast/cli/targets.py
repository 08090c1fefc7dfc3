"""From what a user types to a pipeline: paths, addresses, names, options that commands share.

Invariants:
- Looking never creates anything: a wrong path stays a wrong path.
- Secrets come from options or the environment and are never printed.
- What is ambiguous is an error that lists the choices, never a guess.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.checkpoint.directory import PipelineDirectory
from holdfast.checkpoint.reader import StoreReader, list_pipelines
from holdfast.cli.app import F, argument, flag, option
from holdfast.clock import SystemClock
from holdfast.errors import InvalidInputError, NotFoundError, RefusedError
from holdfast.format import paths
from holdfast.format.documents import Summary
from holdfast.storage.base import Storage
from holdfast.storage.open import OBJECT_SCHEMES, StorageLocation, open_storage

if TYPE_CHECKING:
    from holdfast.checkpoint.store import Store
    from holdfast.settings import Settings

_CLIENT = frozenset(
    (
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "read_timeout",
        "timeout",
        "user_agent",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "allow_invalid_certificates",
    )
)
_NESTED = ("client_options", "retry_config", "config", "credential_provider")
_DURATIONS = ("timeout", "interval")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


REF = "Checkpoint: id, start of one, label, epoch, time (2026-11-15T21:30, ago:2h), latest."

store_argument = argument(
    "store", "STORE", "Root of the store or ROOT/PIPELINE: a path, s3://, gs:// or az://."
)
ref_argument = argument("ref", "REF", REF, default="latest")
json_option = flag("--json", "as_json", help="Print one JSON document.")
dry_run_option = flag("--dry-run", help="Show it, change nothing.")
takeover_option = flag("--takeover", help="Fence a pipeline that is running.")
pipeline_option = option(
    "-p", "--pipeline", metavar="NAME", help="Pipeline, where the root has several."
)
client_option = option(
    "--option",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the object store's client, besides AWS_*, GOOGLE_* and AZURE_*.",
)


def store_options(function: F) -> F:
    """The options of every command on a store: `--pipeline`, `--json`, `--option`."""
    return pipeline_option(json_option(client_option(function)))


@dataclass(frozen=True)
class Place:
    """A root and, once it is known, one pipeline below it."""

    storage: Storage
    root: str
    pipeline: str

    @property
    def reader(self) -> StoreReader:
        """For reading. The header is not looked at yet."""
        return StoreReader(PipelineDirectory(self.storage, self.pipeline))


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """`--option key=value`, as the object store's client takes them."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_]+", key) or key in _NESTED:
            raise InvalidInputError(
                "an option is written key=value",
                kind="bad_option",
                option=key[:60],
                remedy="for example --option endpoint=http://127.0.0.1:9000",
            )
        found[key.lower()] = value
    return found


def open_root(
    address: str, options: dict[str, Any] | None = None, *, create: bool = False
) -> Storage:
    """Open a root, with the environment's object-store settings below the given options."""
    if not address.strip():
        raise InvalidInputError("the address of a store is empty", kind="bad_url")
    if is_object(address):
        return open_storage(address, options=_object_options(options or {}))
    if options:
        raise InvalidInputError(
            "options are for object stores",
            kind="bad_option",
            address=address,
            remedy="leave --option out for a local path",
        )
    return open_storage(address, create=create)


def root_location(address: str, options: dict[str, Any]) -> StorageLocation:
    """A root as tasks on other machines open it; their environment may give what is left out."""
    if not is_object(address):
        return StorageLocation(os.path.abspath(os.path.expanduser(address)))
    return StorageLocation(address, _object_options(options), "~/.cache/holdfast/runs")


def _object_options(given: dict[str, Any]) -> dict[str, Any]:
    """Options of the client; a single endpoint on this machine may be reached without TLS."""
    options = dict(given)
    client = dict(options.pop("client_options", {}))
    for name in [name for name in options if name in _CLIENT]:
        value = str(options.pop(name))
        client[name] = f"{value}s" if name.endswith(_DURATIONS) and value.isdecimal() else value
    for name in ("allow_http", "aws_allow_http"):
        if name in options:
            client["allow_http"] = str(options.pop(name)).lower() in ("1", "true", "yes")
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true", "yes"):
        client.setdefault("allow_http", True)
    endpoint = options.get("endpoint") or options.get("aws_endpoint_url")
    endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and urlsplit(str(endpoint)).hostname in _LOOPBACK:
        client.setdefault("allow_http", True)
    if client:
        options["client_options"] = client
    return options


def is_object(address: str) -> bool:
    """Whether the address is that of an object store."""
    return urlsplit(address).scheme in OBJECT_SCHEMES and "://" in address


def split_address(address: str) -> tuple[str, str]:
    """An address and the last part of its path: `a/b` is (`a`, `b`); the second may be empty."""
    if "://" in address:
        parts = urlsplit(address)
        path = parts.path.strip("/")
        head, _, last = path.rpartition("/")
        if parts.scheme == "file":
            return f"file:///{head}", last
        if not path or parts.scheme == "memory":
            return address, ""
        return f"{parts.scheme}://{parts.netloc}/{head}".rstrip("/"), last
    path = os.path.abspath(os.path.expanduser(address))
    return os.path.dirname(path) or "/", os.path.basename(path)


def find_place(
    address: str, pipeline: str | None = None, options: dict[str, Any] | None = None
) -> Place:
    """The one pipeline that is meant: ROOT with a name, ROOT/PIPELINE, or a root with just one."""
    if pipeline is not None:
        paths.pipeline_dir(pipeline)
        return Place(open_root(address, options), address, pipeline)
    joined = _joined(address, options)
    if joined is not None:
        return joined
    storage = _open_or_explain(address, options)
    names = pipelines_of(storage)
    if len(names) == 1:
        return Place(storage, address, names[0])
    if not names:
        raise NotFoundError(
            "no pipeline here",
            kind="no_pipeline",
            root=address,
            remedy="give the directory that holds the pipelines, or ROOT/PIPELINE",
        )
    raise InvalidInputError(
        "several pipelines are here",
        kind="several_pipelines",
        root=address,
        pipelines=",".join(names[:20]),
        remedy="say which: ROOT/PIPELINE, or --pipeline NAME",
    )


def _open_or_explain(address: str, options: dict[str, Any] | None) -> Storage:
    """Open a root; where only the last part is missing, say which pipelines its parent has."""
    try:
        return open_root(address, options)
    except NotFoundError as error:
        root, name = split_address(address)
        if is_object(address) or not os.path.isdir(root.removeprefix("file://")):
            raise
        names = pipelines_of(open_root(root))
        if not names:
            raise
        raise NotFoundError(
            "no pipeline of that name",
            kind="no_pipeline",
            root=root,
            pipeline=name,
            known=",".join(names[:20]),
            remedy="choose one of these, or check the path",
        ) from error


def _joined(address: str, options: dict[str, Any] | None) -> Place | None:
    """ROOT/PIPELINE written as one; recognised by what a pipeline's directory holds."""
    root, name = split_address(address)
    if not name or not paths.valid_name(name):
        return None
    if not is_object(address):
        place = os.path.expanduser(address.removeprefix("file://"))
        marks = (paths.HEADER, paths.CATALOG, paths.CHECKPOINTS)
        if not any(os.path.exists(os.path.join(place, mark)) for mark in marks):
            return None
        return Place(open_root(root, options), root, name)
    storage = open_root(root, options)
    return Place(storage, root, name) if _is_pipeline(storage, name) else None


def pipelines_of(storage: Storage) -> list[str]:
    """Names of all pipelines below a root, those that have lost their header included."""
    return list_pipelines(storage, damaged=True)


def _is_pipeline(storage: Storage, name: str) -> bool:
    if storage.exists(f"{name}/{paths.HEADER}"):
        return True
    return _any(storage.list(f"{name}/{paths.CATALOG}")) or _any(
        storage.list(f"{name}/{paths.CHECKPOINTS}")
    )


def _any(entries: Iterable[object]) -> bool:
    return any(True for _ in entries)


def named(place: Place, ref: str) -> Summary:
    """The checkpoint that a user names."""
    from holdfast.checkpoint.reference import find_checkpoint

    place.reader.header()
    return find_checkpoint(place.reader, ref, SystemClock().wall_us())


# The writer's role


def take_role(place: Place, *, takeover: bool, settings: Settings, what: str) -> Store:
    """Open for writing exactly where the pipeline stands.

    Taking the writer's role must not choose another checkpoint by the way: where opening would
    fall back, the user is sent to `recover --plan` and `restore`.
    """
    from holdfast.checkpoint.recovery.open import recovery_plan
    from holdfast.checkpoint.store import open_store

    check_lockable(place, takeover=takeover, what=what)
    plan = recovery_plan(place.storage, place.pipeline, settings=settings)
    if plan.refusal is not None:
        raise plan.refusal
    if plan.manifest is None:
        raise RefusedError(
            "the pipeline has no checkpoint yet",
            kind="nothing_there",
            pipeline=place.pipeline,
            remedy="there is nothing to do before the first commit",
        )
    if plan.abandon:
        raise RefusedError(
            "the newest checkpoint is damaged: opening would fall back to an older one",
            kind="would_fall_back",
            newest=plan.abandon[-1],
            chosen=plan.chosen.checkpoint if plan.chosen else None,
            remedy="look at `holdfast recover --plan`, repair it, or `holdfast restore` first",
        )
    return open_store(
        place.storage,
        place.pipeline,
        topology=plan.manifest.topology,
        settings=settings,
        resume=plan.chosen.checkpoint if plan.chosen else None,
        takeover=takeover,
        clean_up=False,
    )


def check_lockable(place: Place, *, takeover: bool, what: str) -> None:
    """Where there are no locks, nobody can see a running pipeline: its end must be asked for."""
    if takeover:
        return
    lease = place.storage.exclusive(f"{place.pipeline}/{paths.LOCK}", what)
    if lease is not None:
        lease.release()
        return
    raise RefusedError(
        "an object store has no lock, so a pipeline that runs now would be fenced off",
        kind="no_lock",
        pipeline=place.pipeline,
        remedy=f"stop the pipeline, then give --takeover to {what}",
    )
