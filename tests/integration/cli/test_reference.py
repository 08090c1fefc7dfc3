"""One grammar for naming a checkpoint, on the command line and in Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.checkpoint.reference import find_checkpoint
from holdfast.clock import SystemClock
from holdfast.errors import InvalidInputError, NotFoundError


def test_epochs_times_and_ids_may_be_text_numbers_or_moments(world):
    """`0`, "0", "epoch:0", an id, a time and "ago:0s" mean what they mean in `--at`."""
    reader, now = world.reader, SystemClock().wall_us()
    first, last = world.ids[0], world.ids[-1]
    moment = datetime.now(UTC) + timedelta(seconds=1)
    for ref in (0, "0", "epoch:0", first):
        assert find_checkpoint(reader, ref, now).checkpoint == first
    for ref in ("latest", "ago:0s", moment, moment.isoformat(), f"time:{moment.isoformat()}", 3):
        assert find_checkpoint(reader, ref, now + 1_000_000).checkpoint == last


@pytest.mark.parametrize("ref", [None, 1.5, True, b"0", ["0"]])
def test_what_names_nothing_is_refused(world, ref):
    """Another type is wrong input, with a remedy; an unknown epoch is not found."""
    with pytest.raises(InvalidInputError):
        find_checkpoint(world.reader, ref, 0)
    with pytest.raises(NotFoundError):
        find_checkpoint(world.reader, 99, 0)
