"""Settings: frozen, keyword-only, serialisable; each says what it trades and what it costs.

Invariants:
- Every knob is checked when it is given, and every knob has an effect that a test shows.
- The unit stands last in the name. Times are milliseconds, so that nothing is truncated to zero.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.durations import Duration, duration_us
from holdfast.errors import InvalidInputError

TASK_BYTES_MAX = 64 << 20


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a pipeline's checkpoints are made and kept.

    interval_ms: time between checkpoints. Shorter means less work to repeat after a crash and
        more commits (about a millisecond and six fsyncs each on local disk).
    log_bytes_min: do not checkpoint before the source log has grown by this much, even when the
        interval has passed. 0 turns the condition off. In a pipeline: bytes of frames read from its
        journals since the last checkpoint, where all sources are journals; otherwise no condition.
        A run that has nothing left to read commits all the same.
    epochs_max: checkpoint after this many epochs, whatever the clock says. 1 is every epoch, and
        what a pipeline does where this is not given; None leaves it to `interval_ms`.
    retain: how many fully committed checkpoints to keep besides the pinned ones; at least 2, since
        with one there is nothing to fall back to. Checkpoints share runs, so one more costs little.
    retain_age_ms: keep everything younger than this as well. Costs storage, buys time to notice.
    incremental: let a checkpoint refer to files of earlier ones. Off means that every
        checkpoint must bring all of its files: larger commits, each one self-contained.
    truncate_log: let the source log be cut behind the oldest retained checkpoint: the pipeline's
        hold on its journal moves there. Off, the hold stays at the journal's base: nothing is cut,
        so every checkpoint and savepoint, however old, can be gone back to.
    inline_bytes_max: operator state up to this size lies inside the manifest; larger goes into
        one packed file per checkpoint. Inline saves a file, but every reader of the manifest pays.
    recovery_verify: `shallow` compares presence and sizes, `deep` hashes every byte before
        resuming. `auto` is deep up to `recovery_deep_bytes_max`; above, it hashes all that is no
        run, and the newest runs up to the limit. The plan says what was left: each batch of a run
        is compared with its checksum when it is read.
    recovery_deep_bytes_max: see `recovery_verify`; hashing runs at about 1.5 GB/s per core.
    base_every_min: compact the catalog when at least this many records follow the last base:
        before a commit, after opening and with retention, gc and deletion. Smaller means fewer
        objects to read on opening and more bytes rewritten.
    task_bytes_max: how many bytes of rows a task works on at once. What it gets beyond that goes to
        Spark's local disk, and is worked through in ranges of keys. A task needs some four times
        as much memory. Smaller costs a pass over the disk where epochs are large; usual epochs
        never reach it.
    epoch_target_ms: about how long an epoch should take. Then the number of rows of an epoch
        follows the rows per millisecond of the last ones, at most doubled or halved each time, and
        within the limits of each source. None: the limits of the sources alone. A small target
        gives fresh results and spends more on the fixed cost of epochs.
    exclusive: on local disk, refuse a second writer while the first process lives, instead of
        fencing it. Off, or where there are no locks, the newcomer always wins.
    """

    interval_ms: int = 60_000
    log_bytes_min: int = 64 * 1024 * 1024
    epochs_max: int | msgspec.UnsetType | None = msgspec.UNSET
    retain: int = 3
    retain_age_ms: int = 0
    incremental: bool = True
    truncate_log: bool = True
    inline_bytes_max: int = 4 * 1024
    recovery_verify: Literal["auto", "shallow", "deep"] = "auto"
    recovery_deep_bytes_max: int = 256 * 1024 * 1024
    base_every_min: int = 64
    task_bytes_max: int = TASK_BYTES_MAX
    epoch_target_ms: int | None = None
    exclusive: bool = True

    def __post_init__(self) -> None:
        """Refuse values that can never work."""
        for name, low in _LOWEST.items():
            value = getattr(self, name)
            if name in _OPTIONAL and value in (None, msgspec.UNSET):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise InvalidInputError(
                    f"setting {name} is out of range",
                    kind="invalid_setting",
                    setting=name,
                    value=repr(value)[:100],
                    remedy=f"give a whole number of at least {low}",
                )
        for name in ("incremental", "truncate_log", "exclusive"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInputError(
                    f"setting {name} is not a truth value",
                    kind="invalid_setting",
                    setting=name,
                    value=repr(getattr(self, name))[:100],
                    remedy="give True or False",
                )
        if self.inline_bytes_max > 1024 * 1024:
            raise InvalidInputError(
                "setting inline_bytes_max is out of range",
                kind="invalid_setting",
                setting="inline_bytes_max",
                value=self.inline_bytes_max,
                remedy="give at most 1048576: inline state is read with every manifest",
            )
        if self.recovery_verify not in ("auto", "shallow", "deep"):
            raise InvalidInputError(
                "setting recovery_verify is unknown",
                kind="invalid_setting",
                setting="recovery_verify",
                value=repr(self.recovery_verify)[:100],
                remedy="give 'auto', 'shallow' or 'deep'",
            )

    @classmethod
    def of(
        cls,
        *,
        interval: Duration | None = None,
        retain_age: Duration | None = None,
        epoch_target: Duration | None = None,
        **others: Any,
    ) -> Settings:
        """Settings whose times are written with their unit.

        Args:
            interval: `interval_ms` as a duration: `"1 minute"`, `timedelta(minutes=1)`.
            retain_age: `retain_age_ms` as a duration.
            epoch_target: `epoch_target_ms` as a duration: `"2 seconds"`.
            **others: Any other setting by its name.

        Returns:
            The same as the constructor gives for milliseconds.

        Raises:
            InvalidInputError: A text is no duration, or a value can never work.

        Example:
            >>> from holdfast import Settings
            >>> Settings.of(interval="1 minute", retain=5) == Settings(interval_ms=60_000, retain=5)
            True
        """
        times = {
            "interval_ms": interval,
            "retain_age_ms": retain_age,
            "epoch_target_ms": epoch_target,
        }
        given: dict[str, Any] = {
            name: duration_us(text) // 1_000 for name, text in times.items() if text is not None
        }
        return cls(**given, **others)

    def for_pipeline(self) -> Settings:
        """These settings with a pipeline's own default where nothing was given."""
        if self.epochs_max is msgspec.UNSET:
            return msgspec.structs.replace(self, epochs_max=1)
        return self


_LOWEST = {
    "interval_ms": 1,
    "log_bytes_min": 0,
    "epochs_max": 1,
    "retain": 2,
    "retain_age_ms": 0,
    "inline_bytes_max": 0,
    "recovery_deep_bytes_max": 0,
    "base_every_min": 2,
    "task_bytes_max": 1,
    "epoch_target_ms": 1,
}
_OPTIONAL = ("epochs_max", "epoch_target_ms")
