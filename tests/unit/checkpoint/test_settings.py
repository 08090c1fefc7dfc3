"""Every knob is checked when it is given, and has an effect that shows."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

import holdfast
from holdfast import Settings
from holdfast.checkpoint import Part, open_store, topology
from holdfast.checkpoint.schedule import Schedule
from holdfast.clock import ManualClock
from holdfast.errors import ConflictError, InvalidInputError
from holdfast.format.position import CounterPosition
from tests.helpers.paths import ROOT
from tests.helpers.rig import Rig, record_path

ANY = {"log_bytes_min": 0}


def _schedule(clock, **settings):
    schedule = Schedule(Settings(**{**ANY, **settings}), clock)
    schedule.epoch_done()
    return schedule


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_ms", 0), ("interval_ms", -1), ("interval_ms", 0.5), ("interval_ms", True),
        ("interval_ms", "60"), ("interval_ms", None), ("log_bytes_min", -1), ("epochs_max", 0),
        ("retain", 1), ("retain", 2.0), ("retain_age_ms", -1), ("incremental", 1),
        ("truncate_log", "yes"), ("inline_bytes_max", -1), ("inline_bytes_max", 2**20 + 1),
        ("recovery_verify", "never"), ("recovery_deep_bytes_max", -1), ("base_every_min", 1),
        ("exclusive", None),
    ],
)  # fmt: skip
def test_impossible_values_are_refused_when_they_are_given(name, value):
    """A value that can never work is named together with what would."""
    with pytest.raises(InvalidInputError) as caught:
        Settings(**{name: value})
    assert caught.value.kind == "invalid_setting"
    assert caught.value.facts["setting"] == name
    assert caught.value.remedy


def test_settings_are_frozen_and_serialisable_and_know_no_other_fields():
    """Settings travel as JSON, strictly, and cannot be changed in place."""
    settings = Settings(retain=5, epochs_max=3)
    data = msgspec.json.encode(settings)
    assert msgspec.json.decode(data, type=Settings) == settings
    with pytest.raises(AttributeError):
        settings.retain = 9
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"retian":5}', type=Settings)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"retain":0}', type=Settings)


def test_the_defaults_are_the_documented_ones():
    """One minute, three kept, 64 MiB of log, incremental, truncating."""
    settings = Settings()
    assert (settings.interval_ms, settings.retain, settings.log_bytes_min) == (60_000, 3, 64 << 20)
    assert settings.incremental
    assert settings.truncate_log
    assert settings.exclusive


def test_interval_ms_has_an_effect():
    """Due when the interval has passed on the monotonic clock, to the millisecond."""
    for interval in (1, 999, 60_000):
        clock = ManualClock()
        schedule = _schedule(clock, interval_ms=interval)
        clock.advance_ms(interval - 1)
        assert not schedule.should_checkpoint()
        clock.advance_ms(1)
        assert schedule.should_checkpoint()


def test_log_bytes_min_has_an_effect():
    """A log that has not grown enough postpones the checkpoint; zero turns the condition off."""
    clock = ManualClock()
    schedule = Schedule(Settings(interval_ms=10, log_bytes_min=100), clock)
    schedule.epoch_done()
    clock.advance_ms(10)
    assert not schedule.should_checkpoint(log_bytes=99)
    assert schedule.should_checkpoint(log_bytes=100)
    assert schedule.should_checkpoint()
    off = _schedule(ManualClock(), interval_ms=10)
    off._clock.advance_ms(10)
    assert off.should_checkpoint(log_bytes=0)


def test_epochs_max_has_an_effect():
    """So many epochs force a checkpoint, whatever clock and log say; none without an epoch."""
    schedule = Schedule(Settings(epochs_max=3), ManualClock())
    assert not schedule.should_checkpoint(log_bytes=0)
    for expected in (False, False, True):
        schedule.epoch_done()
        assert schedule.should_checkpoint(log_bytes=0) is expected
    schedule.checkpointed()
    assert not schedule.should_checkpoint(log_bytes=0)


def test_no_checkpoint_is_due_without_an_epoch():
    """An idle pipeline makes no checkpoints, however long it waits."""
    clock = ManualClock()
    schedule = Schedule(Settings(interval_ms=1, log_bytes_min=0), clock)
    clock.advance_ms(10**9)
    assert not schedule.should_checkpoint()


@pytest.mark.parametrize("step", [-(10**9), 10**9])
def test_a_restart_with_a_stepped_clock_is_neither_always_nor_never_due(rig, step):
    """The time carried over is between nothing and one interval, whatever the wall clock says."""
    settings = Settings(interval_ms=1_000, log_bytes_min=0)
    with rig.open(settings=settings) as store:
        rig.commit(store)
    rig.clock.step_wall_ms(step)
    with rig.open(settings=settings) as store:
        schedule = store.schedule()
        schedule.epoch_done()
        assert 0 <= schedule.due_in_ms() <= 1_000
        schedule.checkpointed()
        schedule.epoch_done()
        assert schedule.due_in_ms() == 1_000


@pytest.mark.parametrize("retain", [2, 4])
def test_retain_has_an_effect(rig, retain):
    """So many fully committed checkpoints are kept."""
    with rig.open(settings=Settings(retain=retain)) as store:
        for _ in range(6):
            rig.commit(store)
        store.retain()
        assert len(store.list()) == retain


def test_retain_age_ms_has_an_effect(rig):
    """What is younger than the age is kept beyond the number."""
    with rig.open(settings=Settings(retain=2, retain_age_ms=3_500)) as store:
        for _ in range(8):
            rig.commit(store)
        store.retain()
        assert len(store.list()) == 4
        rig.clock.advance_ms(10_000)
        store.retain()
        assert len(store.list()) == 2


def test_incremental_has_an_effect(rig):
    """Turned off, every checkpoint brings all its files, and inheriting is refused."""
    with rig.open(settings=Settings(retain=9, incremental=False)) as store:
        first, second = rig.commit(store), rig.commit(store)
        manifest = store.current
        assert not manifest.incremental
        assert all(second.checkpoint in f.path for f in manifest.files)
        draft = store.draft()
        draft.set_operator("totals", trace="latest", files=[])
        with pytest.raises(InvalidInputError) as caught:
            draft.inherit(manifest.files[0])
        assert caught.value.kind == "not_incremental"
        store.delete(first.checkpoint)
    assert rig.verify().ok


def test_truncate_log_has_an_effect(rig):
    """Turned off, there is no position behind which the log may be cut."""
    rig.fill(2)
    with rig.open(settings=Settings(truncate_log=True)) as store:
        assert set(store.log_floor()) == {"orders"}
    with rig.open(settings=Settings(truncate_log=False)) as store:
        assert store.log_floor() == {}


@pytest.mark.parametrize(("limit", "tag"), [(3, "inline"), (2, "packed"), (0, "packed")])
def test_inline_bytes_max_has_an_effect(rig, limit, tag):
    """Three bytes are inline up to a limit of three, packed below."""
    with rig.open(settings=Settings(inline_bytes_max=limit)) as store:
        rig.commit(store, small=b"123")
        assert store.current.operator("counter").small.__struct_config__.tag == tag
        assert store.reader.small_state(store.current, "counter") == b"123"


def test_empty_small_state_is_state():
    """Zero bytes are inline, even with a limit of zero, and come back as zero bytes."""
    rig = Rig(holdfast.checkpoint.open_storage("memory://empty-small-state"))
    with rig.open(settings=Settings(inline_bytes_max=0)) as store:
        rig.commit(store, small=b"")
        assert store.reader.small_state(store.current, "counter") == b""


@pytest.mark.parametrize(
    ("settings", "depth"),
    [
        ({"recovery_verify": "shallow"}, "shallow"),
        ({"recovery_verify": "deep", "recovery_deep_bytes_max": 0}, "deep"),
        ({"recovery_verify": "auto"}, "deep"),
        ({"recovery_verify": "auto", "recovery_deep_bytes_max": 10}, "shallow"),
    ],
)
def test_recovery_verify_and_its_limit_have_an_effect(rig, settings, depth):
    """A flipped bit is found by a deep recovery only; the plan says how deep it looked."""
    first, second = rig.fill(2)
    run = next((rig.home / "checkpoints" / second.checkpoint).rglob("*.delta"))
    run.write_bytes(run.read_bytes()[::-1])
    with rig.open(settings=Settings(**settings)) as store:
        assert store.recovery.depth == depth
        wanted = first if depth == "deep" else second
        assert store.current.checkpoint == wanted.checkpoint


@pytest.mark.parametrize("every", [4, 64])
def test_base_every_min_has_an_effect(rig, every):
    """The catalog is folded when so many records follow the last base, and stays readable."""
    with rig.open(settings=Settings(retain=2, base_every_min=every)) as store:
        reports = []
        for _ in range(6):
            rig.commit(store)
            reports.append(store.retain().compacted)
    assert any(reports) == (every == 4)
    assert record_path(rig, 0).exists() == (every == 64)
    assert len(rig.reader().list()) == 2
    assert rig.verify().ok


def test_exclusive_has_an_effect(rig):
    """On: a second writer is refused while the first lives. Off: it fences the first."""
    with rig.open(settings=Settings(exclusive=True)):
        with pytest.raises(ConflictError):
            rig.open(settings=Settings(exclusive=True))
    one = rig.open(settings=Settings(exclusive=False))
    rig.open(settings=Settings(exclusive=False)).close()
    with pytest.raises(ConflictError):
        rig.commit(one)


def test_times_may_be_written_with_their_unit():
    """`Settings.of` takes durations as everywhere else; what is none is refused."""
    made = Settings.of(interval="2m", retain_age=timedelta(days=1), retain=5)
    assert made == Settings(interval_ms=120_000, retain_age_ms=86_400_000, retain=5)
    assert Settings.of() == Settings()
    for wrong in ({"interval": "soon"}, {"retain_age": timedelta(-1)}, {"interval": 5}):
        with pytest.raises(InvalidInputError) as caught:
            Settings.of(**wrong)
        assert caught.value.kind == "invalid_duration"


WITH_SPARK = {
    "task_bytes_max": "test_a_large_file_in_parts_through_tasks_in_pieces_equals_batch",
    "epoch_target_ms": "test_epochs_follow_a_target_and_say_so",
}
"""Settings of tasks and epochs: their tests are in tests/integration/pipeline/test_memory.py."""


def test_every_setting_has_a_test_of_its_effect():
    """A knob without an effect cannot be added: each needs a test of its own, most in this file."""
    shown = {"recovery_verify", "recovery_deep_bytes_max"}  # one test for both
    text = (ROOT / "tests/integration/pipeline/test_memory.py").read_text(encoding="utf-8")
    shown |= {
        name
        for name, test in WITH_SPARK.items()
        if f"def {test}(" in text and f"{name.removesuffix('_ms')}=" in text
    }
    shown |= {
        name for name in Settings.__struct_fields__ if f"test_{name}_has_an_effect" in globals()
    }
    assert shown == set(Settings.__struct_fields__)


def test_a_checkpoint_from_before_a_source_was_added_holds_its_log(tmp_path):
    """Going back to it means to read the source from its start."""

    def commit(names: list[str]) -> set[str]:
        shape = topology(*(Part(name=name, kind="source", what="counter") for name in names))
        with open_store(
            str(tmp_path / "cp"),
            "p",
            topology=shape,
            settings=Settings(retain=2),
            allow_changes=True,
        ) as store:
            draft = store.draft()
            for name in names:
                draft.set_source(name, CounterPosition(partitions={"0": int(draft.epoch)}))
            store.commit(draft)
            floors = set(store.log_floor())
            store.retain()
            return floors

    assert commit(["orders"]) == {"orders"}
    assert commit(["orders", "late"]) == {"orders"}
    assert commit(["orders", "late"]) == {"orders"}
    assert commit(["orders", "late"]) == {"orders", "late"}
