"""Executor, worker and driver killed in turn on a standalone cluster, store on S3: exactly once."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.helpers.cluster_world import World
from tests.helpers.effort import SOAK

pytestmark = [pytest.mark.spark, pytest.mark.server]
KILLS = int(os.environ.get("HOLDFAST_KILLS", "20" if SOAK else "3"))
VICTIMS = ("executor", "worker", "driver")


@pytest.mark.timeout(7_200 if SOAK else 900)
def test_executor_worker_and_driver_killed_in_turn_nothing_is_lost_or_doubled(
    cluster, true_s3, tmp_path, record_property
) -> None:
    """Speculation and retries on: whatever dies, each row is published once and none is missing."""
    seed = int(os.environ.get("HOLDFAST_KILLS_SEED", str(int(time.time()))))
    rng = random.Random(seed)
    print(f"HOLDFAST_KILLS_SEED={seed}")
    record_property("seed", seed)
    world = World(cluster, true_s3, tmp_path / "home", rows=100 * (4 + 4 * KILLS))
    run = world.submit()
    killed: list[str] = []
    try:
        while len(killed) < KILLS:
            victim = VICTIMS[len(killed) % len(VICTIMS)]
            run.wait_for_epochs(run.epochs() + rng.randint(1, 2))
            time.sleep(rng.random() * 0.4)
            if victim == "driver":
                run.kill()
                run = world.submit()
            elif victim == "worker":
                cluster.kill_worker()
                cluster.start_worker()
            else:
                assert cluster.kill_executor(), "no executor was there"
            killed.append(victim)
            print(f"killed {victim}, {len(killed)} of {KILLS}", flush=True)
        assert run.wait() == 0, run.text[-3000:]
    finally:
        run.kill()
    assert len(killed) == KILLS
    world.check()
