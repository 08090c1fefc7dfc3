"""The tiny store whose bytes stand in spec/format-v2.md, section 10, made again."""

from pathlib import Path
from unittest.mock import patch

import msgspec

import holdfast as hf
from holdfast.clock import ManualClock
from holdfast.format.manifest import Versions
from holdfast.ids import SeededIds

PIPELINE = "tiny"


def write_spec_store(root: Path) -> Path:
    """Two checkpoints, a segment, one outcome, one savepoint; returns the pipeline's directory."""
    topology = hf.checkpoint.topology(
        hf.checkpoint.Part(name="numbers", kind="source", what="counter"),
        hf.checkpoint.Part(name="queue", kind="source", what="acme-queue"),
        hf.checkpoint.Part(
            name="seen", kind="operator", what="distinct", inputs=["numbers"], keys=["n"]
        ),
        hf.checkpoint.Part(
            name="total", kind="operator", what="sum", inputs=["numbers"], stateful=True
        ),
        hf.checkpoint.Part(name="out", kind="sink", what="files", inputs=["total"]),
    )
    clock = ManualClock(wall_us=1_700_000_000_000_000)
    versions = Versions(holdfast="0.1.0", python="3.11.0")
    with (
        patch("platform.node", return_value="example"),
        patch("holdfast.checkpoint.commit.protocol.software", return_value=versions),
        patch("holdfast.checkpoint.recovery.open.__version__", "0.1.0"),
        patch("holdfast.checkpoint.segments.LISTED_MAX", 1),
        patch("holdfast.checkpoint.segments.SEGMENT_FILES", 2),
    ):
        store = hf.checkpoint.open_store(
            root, PIPELINE, topology=topology, clock=clock, ids=SeededIds(7)
        )
        for epoch, (count, total) in enumerate([(3, 3), (5, 10)]):
            clock.advance_ms(1_000)
            draft = store.draft()
            draft.set_source("numbers", hf.checkpoint.CounterPosition(partitions={"0": count}))
            offsets = {"p0": f"{count:06d}"}
            draft.set_source(
                "queue",
                hf.checkpoint.OpenPosition(kind="acme-queue", offsets=offsets, order="number"),
            )
            run = draft.write_run("seen", 0, b"run %d\n" % epoch, snapshot=epoch == 0, rows=count)
            draft.set_operator("seen", trace="latest", rows=count, keys=count)
            draft.add_file(msgspec.structs.replace(run, epoch_low=epoch, epoch_high=epoch))
            draft.put_small("total", str(total).encode())
            draft.stage_sink("out", f"staged/{epoch}", replay="deduplicates")
            draft.add_processed(count)
            store.commit(draft)
            if epoch == 0:
                store.record_outcome(store.list()[0].checkpoint, "out", "committed")
        store.pin("before-upgrade", "epoch:0")
        store.close()
    return root / PIPELINE
