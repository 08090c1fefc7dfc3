"""When is a checkpoint due?

Invariants:
- Intervals run on the monotonic clock: a wall clock that is stepped changes nothing.
- A restart does not make a checkpoint due: the time since the last one is carried over, as far as
  the wall clock can be believed, so a crash loop makes no extra checkpoints and evicts none.
- Milliseconds throughout: a short interval is never truncated to "always".
"""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.settings import Settings


class Schedule:
    """Decides after each epoch whether to checkpoint."""

    def __init__(self, settings: Settings, clock: Clock, *, last_us: int | None = None) -> None:
        """Begin; `last_us` is the wall time of the last checkpoint, if there is one."""
        self._settings = settings
        self._clock = clock
        self._start_ms = clock.monotonic_ms()
        if last_us is not None:
            elapsed_ms = (clock.wall_us() - last_us) // 1_000
            self._start_ms -= min(max(elapsed_ms, 0), settings.interval_ms)
        self._epochs = 0

    def epoch_done(self) -> None:
        """One more epoch since the last checkpoint."""
        self._epochs += 1

    def due_in_ms(self) -> int:
        """Time until the interval has passed."""
        elapsed = self._clock.monotonic_ms() - self._start_ms
        return max(0, self._settings.interval_ms - elapsed)

    def should_checkpoint(self, *, log_bytes: int | None = None) -> bool:
        """Whether a checkpoint is due.

        Due after `epochs_max` epochs, whatever else; otherwise when the interval has passed and,
        where the growth of the log is given, it has reached `log_bytes_min`. Never without an
        epoch.
        """
        if self._epochs == 0:
            return False
        limit = self._settings.epochs_max
        if isinstance(limit, int) and self._epochs >= limit:
            return True
        if self.due_in_ms() > 0:
            return False
        return log_bytes is None or log_bytes >= self._settings.log_bytes_min

    def checkpointed(self) -> None:
        """A checkpoint was committed now."""
        self._start_ms = self._clock.monotonic_ms()
        self._epochs = 0
