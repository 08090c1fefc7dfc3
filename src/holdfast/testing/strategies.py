"""Hypothesis strategies for everything that Holdfast stores: valid values, whole and related.

The only module of Holdfast that imports Hypothesis.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION, NO_DIGEST, sha256_hex
from holdfast.format.documents import (
    BaseBody,
    Body,
    CommitBody,
    DropBody,
    OpenBody,
    Outcome,
    Pin,
    Record,
    Replay,
    SinkPromise,
    Summary,
)
from holdfast.format.manifest import (
    FileEntry,
    InlineState,
    Manifest,
    OperatorEntry,
    SinkEntry,
    SourceEntry,
    Versions,
)
from holdfast.format.position import (
    CounterPosition,
    DeltaPosition,
    FilesPosition,
    IcebergPosition,
    JournalPosition,
    KafkaPosition,
    MysqlPosition,
    OpenPosition,
    Position,
    PostgresPosition,
    PostgresSnapshot,
    TableProgress,
)
from holdfast.format.topology import Part, PartKind, Topology, fingerprint, topology
from holdfast.format.validate import counts_of
from holdfast.ids import CheckpointId, Epoch, Sequence, WriterId, uuid7

_HEX = "0123456789abcdef"
counts = st.integers(0, 2**63 - 1)
epochs = st.integers(0, 10**9)


def names() -> SearchStrategy[str]:
    """Names that a user may give."""
    return st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


def bad_names() -> SearchStrategy[str]:
    """Names that must be refused: they climb, hide, separate, or are too long."""
    return st.one_of(
        st.sampled_from(
            ["", ".", "..", "../x", "a/b", "/a", ".a", "-a", "a\x00", "a\\b", "ä", " "]
        ),
        st.text("ab", min_size=129, max_size=140),
        names().map(lambda name: f"../{name}"),
    )


def checkpoint_ids() -> SearchStrategy[CheckpointId]:
    """UUIDv7 of any instant."""
    return st.builds(
        lambda wall, bits: CheckpointId(uuid7(wall, bits)),
        st.integers(0, 2**47 * 1_000),
        st.integers(0, 2**74 - 1),
    )


def writer_ids() -> SearchStrategy[WriterId]:
    """Ids of writers."""
    return st.uuids(version=4).map(lambda value: WriterId(str(value)))


def digests() -> SearchStrategy[str]:
    """SHA-256 digests."""
    return st.text(_HEX, min_size=64, max_size=64)


def positions() -> SearchStrategy[Position]:
    """Positions of every connector."""
    partitions = st.dictionaries(st.integers(0, 9_999).map(str), counts, max_size=4)
    lsn = st.integers(0, 2**64 - 1).map(lambda n: f"{n >> 32:X}/{n & 0xFFFFFFFF:X}")
    gtid = st.builds(
        lambda server, low, more: f"{server}:{low}-{low + more}",
        st.uuids(),
        st.integers(1, 10**9),
        st.integers(0, 10**9),
    )
    return st.one_of(
        st.builds(KafkaPosition, topics=st.dictionaries(names(), partitions, max_size=3)),
        st.builds(PostgresPosition, slots=st.dictionaries(names(), lsn, max_size=3)),
        st.builds(
            MysqlPosition, gtids=st.lists(gtid, max_size=3, unique_by=lambda g: g.split(":")[0])
        ),
        st.builds(DeltaPosition, table=names(), version=counts, files=counts),
        st.builds(
            JournalPosition,
            journal=names(),
            segment=counts,
            offset=counts,
            sequence=counts,
            chain=digests(),
        ),
        st.builds(
            IcebergPosition,
            table=names(),
            snapshot=counts,
            sequence=counts,
            files=counts,
            phase=st.sampled_from(["follow", "snapshot"]),
        ),
        st.builds(
            OpenPosition,
            kind=names(),
            order=st.sampled_from(["number", "text", "fixed", "none"]),
            offsets=st.dictionaries(names(), counts.map(str), max_size=3),
            meta=st.dictionaries(names(), st.text(max_size=9), max_size=2),
        ),
        st.builds(
            PostgresPosition,
            slots=st.dictionaries(names(), lsn, max_size=3),
            phase=st.just("snapshot"),
            snapshot=st.builds(
                PostgresSnapshot,
                xmin=st.integers(1, 99),
                xmax=st.integers(99, 2**40),
            ),
            tables=st.dictionaries(
                names(), st.builds(TableProgress, rows=counts, done=st.booleans()), max_size=3
            ),
        ),
        st.builds(FilesPosition, files=counts, recent=st.lists(st.text(max_size=20), max_size=3)),
        counters(),
    )


def counters() -> SearchStrategy[CounterPosition]:
    """Positions that only count."""
    return st.builds(
        CounterPosition, partitions=st.dictionaries(names(), counts, min_size=1, max_size=4)
    )


@st.composite
def topologies(draw: Any) -> Topology:
    """Pipelines with at least one source; inputs exist, names are unique."""
    chosen = draw(st.lists(names(), min_size=1, max_size=7, unique=True))
    parts: list[Part] = []
    for number, name in enumerate(chosen):
        kind: PartKind = (
            "source" if number == 0 else draw(st.sampled_from(["source", "operator", "sink"]))
        )
        before = [part.name for part in parts if part.kind != "sink"]
        inputs = [] if kind == "source" else draw(st.lists(st.sampled_from(before), unique=True))
        parts.append(
            Part(
                name=name,
                kind=kind,
                what=draw(names()),
                inputs=inputs,
                keys=draw(st.lists(names(), max_size=2)),
                version=draw(st.integers(1, 5)),
                params=draw(st.dictionaries(names(), st.text(max_size=10), max_size=2)),
            )
        )
    return topology(*parts)


@st.composite
def manifests(draw: Any) -> Manifest:
    """Valid manifests: entries for every part, own files, totals that add up."""
    shape = draw(topologies())
    checkpoint = draw(checkpoint_ids())
    epoch = Epoch(draw(epochs))
    operators, files = [], []
    for name in shape.names("operator"):
        if draw(st.booleans()):
            data = draw(st.binary(max_size=40))
            small = InlineState(data=data, sha256=sha256_hex(data))
            operators.append(OperatorEntry(name=name, trace="small", bytes=len(data), small=small))
            continue
        size = draw(st.integers(0, 2**40))
        partition = draw(st.integers(0, 99_999))
        path = paths.run(
            checkpoint,
            name,
            partition,
            draw(st.text(_HEX, min_size=16, max_size=16)),
            snapshot=True,
        )
        files.append(
            FileEntry(
                path=path,
                size=size,
                sha256=draw(digests()),
                kind="snapshot",
                operator=name,
                partition=partition,
                rows=draw(counts),
            )
        )
        operators.append(OperatorEntry(name=name, trace="latest", bytes=size))
    total = sum(entry.size for entry in files)
    return Manifest(
        format=FORMAT_VERSION,
        sha256=NO_DIGEST,
        checkpoint=checkpoint,
        pipeline=draw(names()),
        lineage=draw(writer_ids()),
        epoch=epoch,
        sequence=Sequence(draw(epochs)),
        writer=draw(writer_ids()),
        created_us=draw(counts),
        topology=shape,
        fingerprint=fingerprint(shape),
        versions=Versions(holdfast="0", python="3"),
        label=draw(st.none() | names()),
        processed=draw(counts),
        bytes_new=total,
        bytes_total=total,
        sources=[
            SourceEntry(name=name, position=draw(positions()), epoch=epoch)
            for name in shape.names("source")
        ],
        operators=operators,
        sinks=[
            SinkEntry(
                name=name, epoch=epoch, token=draw(st.text(max_size=30)), replay=draw(replays())
            )
            for name in shape.names("sink")
        ],
        listed=files,
        counts=counts_of(operators),
        properties=draw(st.dictionaries(names(), st.text(max_size=20), max_size=3)),
    )


def replays() -> SearchStrategy[Replay]:
    """What a sink can do when an epoch is run again."""
    return st.sampled_from(("deduplicates", "retracts", "none"))


def summaries() -> SearchStrategy[Summary]:
    """Checkpoints as the catalog knows them."""
    return st.builds(
        Summary,
        checkpoint=checkpoint_ids(),
        epoch=epochs.map(Epoch),
        sequence=epochs.map(Sequence),
        manifest_sha256=digests(),
        manifest_bytes=counts,
        created_us=counts,
        fingerprint=digests(),
        parent=st.none() | checkpoint_ids(),
        label=st.none() | names(),
        sinks=st.lists(st.builds(SinkPromise, name=names(), replay=replays()), max_size=2),
        abandoned=st.booleans(),
    )


def bodies() -> SearchStrategy[Body]:
    """Every kind of catalog record, without its frame."""
    ids = st.lists(checkpoint_ids(), max_size=3)
    return st.one_of(
        st.builds(OpenBody, resume=st.none() | checkpoint_ids(), abandoned=ids, host=names()),
        st.builds(CommitBody, summary=summaries()),
        st.builds(DropBody, checkpoints=ids, reason=names()),
        st.builds(BaseBody, live=st.lists(summaries(), max_size=3), epoch_max=epochs),
    )


@st.composite
def records(draw: Any) -> Record:
    """Catalog records whose base is possible."""
    body = draw(bodies())
    sequence = draw(epochs)
    base = sequence if isinstance(body, BaseBody) else draw(st.integers(0, sequence))
    return Record(
        format=FORMAT_VERSION,
        sha256=NO_DIGEST,
        sequence=Sequence(sequence),
        base=Sequence(base),
        previous=draw(digests()),
        writer=draw(writer_ids()),
        at_us=draw(counts),
        body=body,
    )


def pins() -> SearchStrategy[Pin]:
    """Savepoints."""
    return st.builds(
        Pin,
        format=st.just(FORMAT_VERSION),
        sha256=st.just(NO_DIGEST),
        label=names(),
        checkpoint=checkpoint_ids(),
        epoch=epochs.map(Epoch),
        created_us=counts,
        manifest_sha256=digests(),
        note=st.text(max_size=30),
    )


def outcomes() -> SearchStrategy[Outcome]:
    """What became of sink tokens."""
    return st.builds(
        Outcome,
        format=st.just(FORMAT_VERSION),
        sha256=st.just(NO_DIGEST),
        checkpoint=checkpoint_ids(),
        epoch=epochs.map(Epoch),
        sink=names(),
        attempt=st.integers(0, 999_999),
        status=st.sampled_from(("committed", "failed", "aborted")),
        replay=replays(),
        at_us=counts,
        writer=writer_ids(),
        reason=st.text(max_size=30),
    )


@st.composite
def drafts(draw: Any) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Calls on a `Draft` of the topology `holdfast.testing.strategies.draft_topology()`.

    Each is (method, arguments, keywords), to be made in order; the result can be committed.
    """
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("set_source", ("source", CounterPosition(partitions={"0": draw(st.integers(0, 99))})), {}),
        ("put_small", ("state", draw(st.binary(max_size=64))), {"keys": draw(counts)}),
    ]
    if draw(st.booleans()):
        calls.append(
            ("stage_sink", ("sink", draw(st.text(max_size=20))), {"replay": draw(replays())})
        )
    if draw(st.booleans()):
        calls.append(("set_watermark", (draw(counts),), {}))
    if draw(st.booleans()):
        calls.append(("add_processed", (draw(st.integers(0, 2**31)),), {}))
    if draw(st.booleans()):
        notes = draw(st.dictionaries(names(), st.text(max_size=10), max_size=3))
        calls.append(("set_properties", (notes,), {}))
    return calls


def draft_topology() -> Topology:
    """The pipeline that `drafts` are for."""
    return topology(
        Part(name="source", kind="source", what="counter"),
        Part(name="state", kind="operator", what="state", inputs=["source"], stateful=True),
        Part(name="sink", kind="sink", what="memory", inputs=["state"]),
    )
