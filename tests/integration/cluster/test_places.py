"""The same pipeline on other places: Spark Connect, and a store that is moved to S3 and back."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.soak]


@pytest.mark.timeout(3_600)
def test_a_store_moves_to_s3_and_back_and_the_pipeline_goes_on_there(world) -> None:
    """Four epochs on disk, four in the bucket, the rest on disk again: nothing lost or doubled."""
    first, bucket, second = str(world.home / "a"), f"{world.root}/moved", str(world.home / "b")
    world.move_store(first)
    world.finish("--epochs", "4")
    done = world.holdfast("sync", first, bucket)
    assert done.returncode == 0, done.stderr
    world.move_store(bucket)
    assert "resumed after epoch" in world.finish("--epochs", "4").text
    done = world.holdfast("sync", bucket, second)
    assert done.returncode == 0, done.stderr
    world.move_store(second)
    assert "resumed after epoch" in world.finish().text
    world.check()


@pytest.mark.timeout(3_600)
def test_the_pipeline_over_spark_connect(world, connect) -> None:
    """Shipped as artifacts of the session, looked at, run, stopped and resumed: exact."""
    world.finish("--epochs", "5", master=connect)
    done = world.holdfast("doctor", "--master", connect, "--json", "--wait", "240")
    assert done.returncode == 0, done.stdout
    assert "resumed after epoch" in world.finish(master=connect).text
    world.check()
