"""What a store must do, rule by rule, through the public API and on real files."""

from __future__ import annotations

import shutil

import pytest

import holdfast
from holdfast import Settings, failpoints
from holdfast.checkpoint import FilesPosition, Part, PostgresPosition
from holdfast.errors import (
    ConflictError,
    CorruptionError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from holdfast.format import paths
from holdfast.format.canonical import FORMAT_VERSION
from holdfast.storage import LocalStorage, MemoryStorage, open_storage
from tests.helpers.rig import (
    Rig,
    Wrapper,
    at,
    disk_bytes,
    flip,
    manifest_path,
    record_path,
    shop,
    tree,
)

KEEP_2 = Settings(retain=2)


def test_usage_is_known_from_the_start(rig):
    """A store that is opened again knows its bytes, and they are the disk's."""
    rig.fill(3)
    with rig.open() as store:
        assert store.storage.usage_bytes() == disk_bytes(rig.root)
        rig.commit(store)
        assert store.storage.usage_bytes() == disk_bytes(rig.root)


def test_a_commit_makes_everything_durable_with_one_barrier_and_one_record(tmp_path):
    """One barrier, one put-if-absent, and the hint; nothing else is written."""
    storage = Wrapper(LocalStorage(tmp_path / "root"))
    rig = Rig(storage)
    with rig.open() as store:
        rig.commit(store)
        draft = rig.draft(store)
        storage.calls.clear()
        store.commit(draft)
    written = {
        k: n for k, n in storage.calls.items() if k in ("barrier", "put_new", "put", "create")
    }
    assert written == {"barrier": 1, "put_new": 1, "put": 2}


def test_metadata_tells_everything_about_a_checkpoint(rig):
    """Id, label, fingerprint, sizes, epochs, counts, versions, time, parent, positions."""
    with rig.open(spark="4.3.0") as store:
        first = rig.commit(store, watermark_us=5)
        second = rig.commit(store, label="nightly", watermark_us=6)
        manifest = store.reader.manifest(second)
    assert manifest.checkpoint == second.checkpoint
    assert (manifest.parent, manifest.label, manifest.epoch) == (first.checkpoint, "nightly", 1)
    assert (manifest.processed, manifest.rows, manifest.keys) == (20, 10, 5)
    assert manifest.incremental
    assert not rig.reader().manifest(first).incremental
    assert manifest.versions.holdfast == holdfast.__version__
    assert manifest.versions.spark == "4.3.0"
    assert manifest.versions.python
    assert manifest.format == FORMAT_VERSION
    assert manifest.created_us == rig.clock.wall_us()
    assert manifest.topology == shop()
    assert manifest.source("orders").position == at(20)
    assert (manifest.watermark_us, manifest.source("orders").watermark_us) == (6, 6)
    on_disk = {f.path: (rig.home / f.path).stat().st_size for f in manifest.files}
    assert {f.path: f.size for f in manifest.files} == on_disk
    assert manifest.bytes_total == sum(on_disk.values())
    assert manifest.bytes_new == sum(n for p, n in on_disk.items() if second.checkpoint in p)
    for field in (
        "epoch",
        "fingerprint",
        "rows",
        "keys",
        "processed",
        "bytes_new",
        "bytes_total",
        "label",
    ):
        assert getattr(second, field) == getattr(manifest, field)


def test_ten_thousand_checkpoints_are_listed_from_one_listing():
    """Listing costs one listing and the records since the base, not a request per checkpoint."""
    import msgspec

    storage = MemoryStorage()
    rig = Rig(storage)
    with rig.open(settings=Settings(retain=20_000)) as store:
        first = rig.commit(store)
        many = [
            msgspec.structs.replace(
                first, checkpoint=rig.ids.checkpoint_id(number), epoch=number, sequence=number + 2
            )
            for number in range(10_000)
        ]
        store._catalog.append_base(tuple(many))
        rig.commit(store)
    counted = Wrapper(storage)
    listed = holdfast.checkpoint.read_store(counted, "shop").list()
    assert len(listed) == 10_001
    assert [e.epoch for e in listed[:3]] == [1, 9_999, 9_998]
    assert counted.calls["list"] == 1
    assert counted.calls["get"] <= 6


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_verification_names_the_file(rig, damage):
    """A missing, short or changed file is named, for every checkpoint that needs it."""
    summaries = rig.fill(3)
    shared = next((rig.home / "checkpoints" / summaries[0].checkpoint).rglob("*.snap"))
    if damage == "missing":
        shared.unlink()
    elif damage == "short":
        shared.write_bytes(shared.read_bytes()[:-1])
    else:
        flip(shared)
    report = rig.verify(deep=True)
    kind = {"missing": "missing", "short": "size_differs", "flipped": "digest_differs"}[damage]
    assert [(f.kind, f.path) for f in report.all_findings()] == [
        (kind, f"shop/{shared.relative_to(rig.home)}")
    ]
    assert all(report.by_checkpoint[s.checkpoint] for s in summaries)
    assert rig.verify(deep=False).ok == (damage == "flipped")


def test_a_fingerprint_mismatch_is_shown_operator_by_operator(rig):
    """Added, removed and changed parts are all in the message."""
    rig.fill(1)
    changed = shop(
        counter=None,
        extra=Part(name="extra", kind="source", what="files"),
        out=Part(name="out", kind="sink", what="delta", inputs=["totals"]),
    )
    with pytest.raises(IncompatibleError) as caught:
        rig.open(topology=changed)
    text = caught.value.facts["differences"]
    assert text == "counter: removed; extra: added; out: what was parquet, is delta"


def test_clean_up_at_start_removes_leftovers_of_our_own_and_says_what(rig):
    """Orphans and temporary names go, by class with bytes; strangers stay."""
    rig.fill(1)
    orphan = rig.home / paths.run(rig.ids.checkpoint_id(1), "totals", 0, "0" * 16, snapshot=True)
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"x" * 100)
    (rig.home / "catalog" / ".hf-tmp-0123456789abcdef").write_bytes(b"y" * 7)
    (rig.home / "stranger").write_bytes(b"z")
    with rig.open() as store:
        report = store.cleanup
    assert (report.deleted, report.bytes, report.error) == (2, 107, None)
    assert report.plan.classes == {"unreferenced run": 100, "temporary": 7}
    assert [e.path for e in report.plan.foreign] == ["stranger"]
    assert "unreferenced run: 100 bytes" in str(report.plan)
    assert not orphan.exists()
    assert rig.verify().ok


def test_a_failed_delete_is_tried_again_next_time(tmp_path):
    """What clean-up could not delete does not fail the opening, and goes with the next one."""
    storage = Wrapper(LocalStorage(tmp_path / "root"))
    rig = Rig(storage)
    rig.fill(1)
    orphan = tmp_path / "root" / "shop" / paths.pack(rig.ids.checkpoint_id(1))
    orphan.parent.mkdir()
    orphan.write_bytes(b"x")

    def stuck(real, names):
        raise StorageError("stuck", kind="io_error")

    storage.hooks = {"delete_many": stuck}
    with rig.open() as store:
        assert store.cleanup.error.kind == "io_error"
    assert orphan.exists()
    storage.hooks = {}
    rig.open().close()
    assert not orphan.exists()


def test_gc_keeps_what_is_named_pinned_young_or_shared(rig):
    """`keep`, pins, the newest and shared runs survive; the plan says why."""
    settings = Settings(retain=2, retain_age_ms=3_500)
    with rig.open(settings=settings) as store:
        summaries = [rig.commit(store) for _ in range(8)]
        store.pin("gold", summaries[1].checkpoint)
        report = store.gc(keep=[summaries[3].checkpoint])
        kept = [e.epoch for e in reversed(store.list())]
    assert kept == [1, 3, 4, 5, 6, 7]
    assert {summaries[n].checkpoint for n in (0, 2)} == set(report.dropped)
    assert rig.verify().ok


def test_a_dry_run_changes_nothing_and_tells_what_would_go(rig):
    """The dry run of a collection names the same checkpoints and bytes as the real one."""
    with rig.open(settings=KEEP_2) as store:
        for _ in range(5):
            rig.commit(store)
        before = tree(rig.root)
        planned = store.gc(dry_run=True)
        assert planned.dry_run
        assert tree(rig.root) == before
        done = store.gc()
        assert planned.dropped == done.dropped
        assert {e.path for e in planned.plan.delete} == {e.path for e in done.plan.delete}
        assert planned.plan.bytes == done.bytes
        assert done.deleted == len(planned.plan.delete)
    assert tree(rig.root) != before


def test_an_unreadable_manifest_of_a_kept_checkpoint_stops_the_collection(rig):
    """What cannot be read may need any file, so no file goes."""
    with rig.open(settings=KEEP_2) as store:
        for _ in range(5):
            last = rig.commit(store)
    with rig.open(settings=KEEP_2, clean_up=False) as store:
        kept = store.list()[1]
        flip(manifest_path(rig, kept.checkpoint))
        before = {n: d for n, d in tree(rig.root).items() if "/checkpoints/" in n}
        with pytest.raises(CorruptionError):
            store.gc()
        assert {n: d for n, d in tree(rig.root).items() if "/checkpoints/" in n} == before
        assert store.current.checkpoint == last.checkpoint


def test_a_lost_catalog_is_rebuilt_from_the_manifests(rig):
    """Refused first, then rebuilt: the same checkpoints, the next epoch, a whole store."""
    summaries = rig.fill(3)
    shutil.rmtree(rig.home / "catalog")
    before = tree(rig.root)
    with pytest.raises(CorruptionError):
        rig.open()
    plan = holdfast.checkpoint.plan_rebuild(rig.reader())
    assert [f.summary.checkpoint for f in plan.take] == [s.checkpoint for s in summaries]
    assert "confirmed" in str(plan)
    assert tree(rig.root) == before
    holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop")
    assert rig.verify().ok
    with rig.open() as store:
        assert store.current.checkpoint == summaries[-1].checkpoint
        assert store.epoch_next == 3
        rig.commit(store)
    with pytest.raises(RefusedError) as caught:
        holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop")
    assert caught.value.kind == "catalog_whole"
    holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop", force=True)
    assert rig.verify().ok


def test_a_lost_header_is_rebuilt_too(rig):
    """Header and catalog both gone: the manifests know the lineage."""
    rig.fill(2)
    lineage = rig.reader().header().lineage
    shutil.rmtree(rig.home / "catalog")
    (rig.home / "holdfast.json").unlink()
    with pytest.raises(CorruptionError) as caught:
        rig.reader()
    assert caught.value.kind == "header_lost"
    holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop")
    assert rig.reader().header().lineage == lineage
    assert rig.verify().ok


class Crash(BaseException):
    """The process ends here."""


def _die_after_barrier(name):
    if name == "commit.after_barrier":
        raise Crash


def test_rivals_for_one_record_must_be_decided_by_the_user(rig):
    """Two manifests for one number and no evidence: refused, until one is named."""
    with rig.open() as store:
        base = rig.commit(store)
    ours = []
    for _ in range(2):
        store = rig.open(settings=Settings(retain=9, exclusive=False), clean_up=False)
        rig.offset = 10
        draft = rig.draft(store, replay=None)
        with failpoints.failpoint_handler(_die_after_barrier), pytest.raises(Crash):
            store.commit(draft)
        ours.append(draft.checkpoint)
        # the next writer gets the same number, since this one's open record vanishes, and with it
        # the manifest that would tell of it
        record_path(rig, store._catalog.state.head).unlink()
        (rig.home / "checkpoints" / draft.checkpoint).rename(rig.home / draft.checkpoint)
    for checkpoint in ours:
        (rig.home / checkpoint).rename(rig.home / "checkpoints" / checkpoint)
    shutil.rmtree(rig.home / "catalog")
    plan = holdfast.checkpoint.plan_rebuild(rig.reader())
    assert set(plan.undecided) == set(ours)
    before = tree(rig.root)
    with pytest.raises(RefusedError) as caught:
        holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop")
    assert caught.value.kind == "undecided"
    assert tree(rig.root) == before
    done = holdfast.checkpoint.rebuild_catalog(open_storage(rig.root), "shop", choose=[ours[1]])
    assert [f.summary.checkpoint for f in done.take] == [base.checkpoint, ours[1]]
    with rig.open() as store:
        assert store.current.checkpoint == ours[1]
    assert rig.verify().ok


def test_operators_keep_their_own_small_state_typed_and_versioned(rig):
    """Inline below the threshold, packed above, read back by name with its version."""
    settings = Settings(retain=9, inline_bytes_max=10)
    two = shop(second=Part(name="second", kind="operator", what="x"))
    with rig.open(settings=settings, topology=two) as store:
        draft = rig.draft(store, small=b"0123456789")
        draft.put_small("second", b"0123456789a", version=4, keys=2)
        store.commit(draft)
        manifest = store.current
        assert manifest.operator("counter").small.__struct_config__.tag == "inline"
        assert manifest.operator("second").small.__struct_config__.tag == "packed"
        assert (manifest.operator("second").version, manifest.operator("second").keys) == (4, 2)
    reader = rig.reader()
    manifest = reader.manifest("latest")
    assert reader.small_state(manifest, "counter") == b"0123456789"
    assert reader.small_state(manifest, "second") == b"0123456789a"
    with pytest.raises(NotFoundError):
        reader.small_state(manifest, "totals")


def test_packed_state_that_did_not_change_is_shared(rig):
    """A state that is not put again stays in the pack of the checkpoint that wrote it."""
    two = shop(second=Part(name="second", kind="operator", what="x"))
    with rig.open(settings=Settings(retain=9, inline_bytes_max=0), topology=two) as store:
        draft = rig.draft(store, small=b"one")
        draft.put_small("second", b"kept")
        first = store.commit(draft)
        rig.commit(store, small=b"two")
        manifest = store.current
        packs = [f.path for f in manifest.files if f.kind == "pack"]
        assert len(packs) == 2
        assert manifest.operator("second").small.path == paths.pack(first.checkpoint)
        assert store.reader.small_state(manifest, "second") == b"kept"
        assert store.reader.small_state(manifest, "counter") == b"two"
        store.record_outcome(first.checkpoint, "out", "committed")
        store.delete(first.checkpoint)
        assert store.reader.small_state(manifest, "second") == b"kept"
    assert rig.verify().ok


def test_the_footprint_is_what_deleting_frees(rig):
    """For every checkpoint in turn, the bytes on disk shrink by exactly the stated number."""
    with rig.open(settings=Settings(retain=99, inline_bytes_max=0)) as store:
        for number in range(6):
            rig.commit(store, small=b"s" * (20 + number), snapshot=number in (0, 3))
    for epoch in (1, 0, 2, 4):
        with rig.open() as store:
            victim = next(e for e in store.list() if e.epoch == epoch)
            stated = {f.checkpoint: f for f in holdfast.checkpoint.footprints(store.reader)}[
                victim.checkpoint
            ]
            before = disk_bytes(rig.home)
            store.delete(victim.checkpoint)
            record = record_path(rig, store._catalog.state.head).stat().st_size
            assert before - disk_bytes(rig.home) + record == stated.exclusive
            assert stated.total == stated.exclusive + stated.shared
    assert rig.verify().ok


def test_immutable_runs_are_shared_and_never_rewritten(rig):
    """Increments list the runs of their ancestors, unchanged on disk, bases explicit."""
    first, second, third = rig.fill(3)
    manifest = rig.reader().manifest(third)
    runs = manifest.files_of("totals")
    assert [f.kind for f in runs] == ["snapshot", "delta", "delta"]
    assert [f.base for f in runs] == [None, first.checkpoint, second.checkpoint]
    assert [f.path.split("/")[1] for f in runs] == [s.checkpoint for s in (first, second, third)]
    assert all((rig.home / f.path).stat().st_nlink == 1 for f in runs)


def test_restart_finds_lists_loads_and_goes_on(rig):
    """Latest, by id, by epoch, by label, newest first; ids never reused."""
    with rig.open() as store:
        first = rig.commit(store, label="a")
        second = rig.commit(store, label="a")
    reader = rig.reader()
    assert [e.checkpoint for e in reader.list()] == [second.checkpoint, first.checkpoint]
    for ref in ("latest", second.checkpoint, "epoch:1", "a", second.checkpoint[:30]):
        assert reader.resolve(ref).checkpoint == second.checkpoint
    assert reader.manifest("epoch:0").checkpoint == first.checkpoint
    assert holdfast.checkpoint.list_pipelines(rig.root) == ["shop"]


def test_the_log_can_be_cut_behind_the_oldest_retained_checkpoint(rig):
    """The floor of positions is the oldest live position, and none where histories differ."""
    with rig.open() as store:
        for _ in range(3):
            draft = rig.draft(store)
            draft.set_log(PostgresPosition(slots={"s": "0/1"}))
            store.commit(draft)
        assert store.log_floor() == {"orders": at(10)}
        assert store.current.log == PostgresPosition(slots={"s": "0/1"})


def test_large_positions_lie_in_a_file_of_the_inventory(rig):
    """A long list of files is stored next to the manifest, with size and digest."""
    files = shop(orders=Part(name="orders", kind="source", what="files"))
    with rig.open(topology=files) as store:
        draft = rig.draft(store)
        log = draft.put_offsets("orders", b"a.csv\nb.csv")
        draft.set_source("orders", FilesPosition(files=2, log=log))
        store.commit(draft)
        (entry,) = [f for f in store.current.files if f.kind == "offsets"]
        assert (entry.path, entry.size) == (log, 11)
        flip(rig.home / log)
    assert "digest_differs" in {f.kind for f in rig.verify().all_findings()}


def test_a_sink_token_is_pending_until_its_outcome_says_committed(rig):
    """Pending, failed with its reason, committed for good; recorded apart and in order."""
    with rig.open() as store:
        summary = rig.commit(store, settle=False)
        assert [t.status for t in store.pending()] == ["pending"]
        store.record_outcome(summary.checkpoint, "out", "failed", reason="disk away")
        assert [t.status for t in store.pending()] == ["failed"]
        store.record_outcome(summary.checkpoint, "out", "committed")
        assert store.pending() == []
        store.record_outcome(summary.checkpoint, "out", "committed")
        with pytest.raises(InvalidInputError) as caught:
            store.record_outcome(summary.checkpoint, "out", "failed")
        assert caught.value.kind == "outcome_final"
        with pytest.raises(InvalidInputError):
            store.record_outcome(summary.checkpoint, "nobody", "committed")
    outcomes = rig.reader().outcomes().by_token[(summary.checkpoint, "out")]
    assert [(o.attempt, o.status, o.reason) for o in outcomes] == [
        (0, "failed", "disk away"), (1, "committed", ""),
    ]  # fmt: skip


def test_recovery_rolls_pending_and_failed_tokens_forward_in_order(rig):
    """After a restart every token of a durable checkpoint is published, oldest first."""
    with rig.open() as store:
        for _ in range(3):
            rig.commit(store, settle=False)
        store.record_outcome("epoch:1", "out", "failed", reason="x")
    published = []

    class Sink:
        def commit(self, token):
            published.append((token.epoch, token.token))

    with rig.open() as store:
        assert [t.epoch for t in store.recovery.roll_forward] == [0, 1, 2]
        assert "will be committed" in str(store.recovery)
        assert [t.sink for t in store.publish_pending({})] == ["out"] * 3
        assert store.publish_pending({"out": Sink()}) == []
        assert store.pending() == []
    assert published == [(0, "token-0"), (1, "token-1"), (2, "token-2")]
    with rig.open() as store:
        assert store.recovery.roll_forward == ()


def test_a_sink_that_fails_is_recorded_and_tried_again(rig):
    """The failure is an outcome with its reason; settling again publishes from there on."""
    tries = []

    class Flaky:
        def commit(self, token):
            tries.append(token.epoch)
            if token.epoch == 1 and tries.count(1) == 1:
                raise RuntimeError("broker away")

    with rig.open() as store:
        for _ in range(3):
            rig.commit(store, settle=False)
        with pytest.raises(StorageError) as caught:
            store.publish_pending({"out": Flaky()})
        assert caught.value.kind == "sink_failed"
        assert caught.value.facts["epoch"] == 1
        assert [(t.epoch, t.status) for t in store.pending()] == [(1, "failed"), (2, "pending")]
        store.publish_pending({"out": Flaky()})
        assert store.pending() == []
    assert tries == [0, 1, 1, 2]


def test_watermarks_are_kept_per_source_and_for_the_pipeline(rig):
    """Both are restored; a pipeline ahead of its slowest source is a warning of verify."""
    with rig.open() as store:
        draft = rig.draft(store, watermark_us=50)
        draft.set_watermark(51)
        store.commit(draft)
    report = rig.verify()
    assert report.ok
    assert [(f.kind, f.severity) for f in report.all_findings()] == [("watermark_ahead", "warning")]


def test_a_store_of_another_number_of_vnodes_is_refused_before_any_state(rig):
    """The header is compared first, and nothing is written."""
    rig.fill(1)
    before = tree(rig.root)
    with pytest.raises(IncompatibleError) as caught:
        rig.open(
            topology=holdfast.checkpoint.Topology(parts=shop().parts, vnodes=128),
            allow_changes=True,
        )
    assert caught.value.kind == "vnodes_differ"
    assert (caught.value.facts["stored"], caught.value.facts["running"]) == (256, 128)
    assert tree(rig.root) == before


def test_a_reference_table_is_state_inside_the_inventory(rig):
    """Files and position of a table are committed and verified with everything else."""
    tables = shop(rates=Part(name="rates", kind="table", what="delta", stateful=True))
    with rig.open(topology=tables) as store:
        draft = rig.draft(store)
        run = draft.write_run("rates", 0, b"rates", snapshot=True, rows=3)
        draft.set_operator("rates", trace="bag", files=[run], rows=3, keys=3, position=at(4))
        store.commit(draft)
        entry = store.current.operator("rates")
        assert (entry.position, entry.rows, entry.bytes) == (at(4), 3, 5)
        flip(rig.home / run.path)
    assert "digest_differs" in {f.kind for f in rig.verify().all_findings()}


def test_order_comes_from_the_catalog_and_not_from_a_clock(rig):
    """With a clock that runs backwards, newest first is still the order of commits."""
    with rig.open() as store:
        committed = []
        for _ in range(3):
            committed.append(rig.commit(store).checkpoint)
            rig.clock.step_wall_ms(-3_600_000)
    assert [e.checkpoint for e in rig.reader().list()] == committed[::-1]
    assert sorted(committed) == committed[::-1]
    with rig.open() as store:
        assert store.current.checkpoint == committed[-1]


def test_fallback_takes_the_newest_intact_one_and_says_why(rig):
    """Two damaged ones are passed over, reported, abandoned, and not used again."""
    first, second, third = rig.fill(3)
    flip(manifest_path(rig, third.checkpoint))
    next((rig.home / "checkpoints" / second.checkpoint).rglob("*.delta")).unlink()
    plan = holdfast.checkpoint.recovery_plan(rig.root, "shop", topology=shop())
    assert [c.verdict for c in plan.candidates] == ["damaged", "damaged", "chosen"]
    assert plan.abandon == (second.checkpoint, third.checkpoint)
    assert "file is missing" in str(plan)
    with rig.open() as store:
        assert store.current.checkpoint == first.checkpoint
        assert store.recovery.depth == "deep"
        assert [e.abandoned for e in store.list()] == [True, True, False]
    with rig.open() as store:
        assert store.current.checkpoint == first.checkpoint


@pytest.mark.parametrize("status", ["committed", "pending", "failed"])
def test_falling_back_past_a_sink_that_cannot_take_it_twice_is_refused(rig, status):
    """What was or may have been published is not published again, unless asked for by name."""
    with rig.open() as store:
        first = rig.commit(store, replay="none")
        second = rig.commit(store, replay="none", settle=False)
        if status != "pending":
            store.record_outcome(second.checkpoint, "out", status)
    flip(manifest_path(rig, second.checkpoint))
    before = tree(rig.root)
    with pytest.raises(RefusedError) as caught:
        rig.open()
    assert caught.value.kind == "unsafe_fallback"
    assert f"out (epoch 1, {status})" in caught.value.facts["sinks"]
    assert tree(rig.root) == before
    with rig.open(accept_duplicates=True) as store:
        assert store.current.checkpoint == first.checkpoint


@pytest.mark.parametrize("replay", ["deduplicates", "retracts"])
def test_falling_back_past_a_sink_that_can_take_it_twice_is_allowed(rig, replay):
    """A sink that deduplicates or retracts does not stop a fallback."""
    first, second = rig.fill(2, replay=replay)
    flip(manifest_path(rig, second.checkpoint))
    with rig.open() as store:
        assert store.current.checkpoint == first.checkpoint


def test_a_token_that_was_aborted_does_not_stop_going_back(rig):
    """What is known to be unpublished may be run again."""
    with rig.open() as store:
        first = rig.commit(store, replay="none")
        second = rig.commit(store, replay="none", settle=False)
        store.record_outcome(second.checkpoint, "out", "aborted")
    with rig.open(resume=first.checkpoint) as store:
        assert store.current.checkpoint == first.checkpoint


def test_a_lost_token_is_refused_unless_the_loss_is_accepted(rig):
    """An older epoch whose token cannot be read might never be published; that is said."""
    with rig.open() as store:
        first = rig.commit(store, settle=False)
        rig.commit(store)
    flip(manifest_path(rig, first.checkpoint))
    with pytest.raises(RefusedError) as caught:
        rig.open()
    assert caught.value.kind == "token_lost"
    assert caught.value.facts["sinks"] == "out (epoch 0)"
    with rig.open(accept_loss=True) as store:
        assert store.current.epoch == 1


def test_going_back_to_an_older_checkpoint_and_on(rig):
    """Restore: resume by id, by epoch and by savepoint; the newer ones are abandoned and kept."""
    first, second, third = rig.fill(3)
    with rig.open() as store:
        store.pin("gold", second.checkpoint)
    plan = holdfast.checkpoint.recovery_plan(rig.root, "shop", resume="epoch:0")
    assert [c.verdict for c in plan.candidates] == ["newer than asked for"] * 2 + ["chosen"]
    with rig.open(resume="gold") as store:
        assert store.current.checkpoint == second.checkpoint
        assert [e.abandoned for e in store.list()] == [True, False, False]
        rig.offset = 20
        fourth = rig.commit(store)
        assert (fourth.parent, fourth.epoch) == (second.checkpoint, 3)
    with pytest.raises(NotFoundError):
        rig.open(resume="nothing")
    assert rig.verify().ok
    assert third.checkpoint in [e.checkpoint for e in rig.reader().list()]


def test_a_damaged_checkpoint_that_is_asked_for_is_refused(rig):
    """Restore: exactly the one that was named, or an error; never another one quietly."""
    first, second = rig.fill(2)
    flip(manifest_path(rig, first.checkpoint))
    with pytest.raises(CorruptionError) as caught:
        rig.open(resume="epoch:0")
    assert caught.value.kind == "no_intact_checkpoint"
    assert "epoch:0" in str(caught.value)


def test_savepoints_hold_until_they_are_let_go(rig):
    """Pinned ones survive every collection, labels are unique, unpinned ones go."""
    with rig.open(settings=KEEP_2) as store:
        first = rig.commit(store)
        pin = store.pin("gold", note="before the migration")
        assert store.pin("gold") == pin
        for _ in range(4):
            rig.commit(store)
        with pytest.raises(ConflictError) as caught:
            store.pin("gold")
        assert caught.value.kind == "label_taken"
        store.retain()
        assert [e.epoch for e in store.list()] == [4, 3, 0]
        with pytest.raises(RefusedError) as refused:
            store.delete(first.checkpoint)
        assert "gold" in str(refused.value)
        assert rig.reader().manifest("gold").checkpoint == first.checkpoint
        store.unpin("gold")
        with pytest.raises(NotFoundError):
            store.unpin("gold")
        store.retain()
        assert [e.epoch for e in store.list()] == [4, 3]
    assert rig.verify().ok


def test_a_pin_that_arrives_after_the_drop_record_puts_its_checkpoint_back(rig):
    """A savepoint made while a collection runs is kept, with all its files."""
    with rig.open(settings=KEEP_2) as store:
        first = rig.commit(store)
        for _ in range(3):
            rig.commit(store)

        def meanwhile(name):
            if name == "gc.before_record":
                store.pin("late", first.checkpoint)

        with failpoints.failpoint_handler(meanwhile):
            report = store.retain()
        assert first.checkpoint not in report.dropped
        assert len(report.dropped) == 1
    assert rig.reader().manifest("late").checkpoint == first.checkpoint
    assert rig.verify().ok


def test_a_hint_that_is_lost_is_only_worth_a_note(rig):
    """Verify mentions a missing hint; nothing else depends on it, and the next commit makes one."""
    rig.fill(1)
    (rig.home / "_latest").unlink()
    report = rig.verify()
    assert report.ok
    assert [(f.kind, f.severity) for f in report.all_findings()] == [("no_hint", "info")]
    with rig.open() as store:
        rig.commit(store)
    assert rig.verify().all_findings() == []


def test_reading_works_on_a_copy_that_nobody_may_write(rig, tmp_path):
    """Every reading function works with a storage whose writing half raises."""
    with rig.open() as store:
        for _ in range(2):
            rig.commit(store)
        store.pin("gold")

    def forbidden(real, *args, **kwargs):
        raise AssertionError("a reader wrote")

    verbs = ("put", "put_new", "create", "delete", "delete_many", "barrier", "exclusive")
    storage = Wrapper(LocalStorage(rig.root, create=False), dict.fromkeys(verbs, forbidden))
    reader = holdfast.checkpoint.read_store(storage, "shop")
    assert holdfast.checkpoint.verify_store(reader, deep=True).ok
    assert len(reader.list()) == 2
    assert len(holdfast.checkpoint.footprints(reader)) == 2
    assert holdfast.checkpoint.list_pipelines(storage) == ["shop"]
    assert holdfast.checkpoint.recovery_plan(storage, "shop", topology=shop()).mode == "resume"
    assert holdfast.checkpoint.plan_rebuild(reader).take
    assert reader.small_state(reader.manifest("gold"), "counter") == b"7"


def test_a_damaged_catalog_stops_every_delete(rig):
    """A catalog that may have forgotten a checkpoint is not used to decide what to delete."""
    _, second, _ = rig.fill(3)
    flip(record_path(rig, second.sequence))
    with rig.open() as store:
        assert store.cleanup.error.kind == "catalog_damaged"
        for use in (store.gc, lambda: store.delete(store.list()[-1].checkpoint)):
            with pytest.raises(CorruptionError) as caught:
                use()
            assert caught.value.kind == "catalog_damaged"
        assert any("record" in note.lower() for note in store.recovery.notes)
    assert manifest_path(rig, second.checkpoint).exists()


def test_progress_is_reported_while_verifying(rig):
    """A long verification can be watched: bytes done and bytes to do, the last call at the end."""
    rig.fill(3)
    seen = []
    holdfast.checkpoint.verify_store(
        rig.reader(), deep=True, progress=lambda done, total: seen.append((done, total))
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (
        seen[-1][0]
        == seen[-1][1]
        == sum(p.stat().st_size for p in (rig.home / "checkpoints").rglob("part*"))
    )
