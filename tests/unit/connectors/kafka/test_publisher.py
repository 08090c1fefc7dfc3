"""An epoch as one transaction with its marker: on a real broker, with deaths at every place."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from holdfast.connectors.kafka.marker import KEPT, MarkerTopic, first_marker
from holdfast.connectors.kafka.messages import Messages
from holdfast.connectors.kafka.publisher import Publisher
from holdfast.errors import FencedError, NotFoundError, RefusedError, StorageError
from holdfast.testing import SimulatedCrash, crash_at

POINTS = ("kafka.after_send", "kafka.before_commit", "kafka.after_commit")


@pytest.fixture
def place(kafka):
    """A topic for rows and one for markers."""
    return kafka, kafka.topic("rows"), kafka.topic("markers", 1, cleanup_policy="compact")


def publisher(place, ident="store-1"):
    world, rows, markers = place
    markers = MarkerTopic(world.servers, {}, markers)
    own = f"{rows}-{ident}"
    return Publisher(world.servers, {}, markers, lambda: own, lambda: own)


def batch(*numbers):
    texts = [str(n).encode() for n in numbers]
    return lambda: iter([Messages(texts, texts)])


def counts(place):
    world, rows, _ = place
    return Counter(int(m.value()) for m in world.read(rows))


@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_every_place_of_the_transaction_publishes_once(place, point):
    """Before the commit nothing is there; after it nothing comes again; a successor knows which."""
    publisher(place).publish(place[1], 0, "c0", batch(1))
    with pytest.raises(SimulatedCrash), crash_at(point):
        publisher(place).publish(place[1], 1, "c1", batch(2, 3))
    again = publisher(place).publish(place[1], 1, "c1", batch(2, 3))
    assert again == (point != "kafka.after_commit")
    assert counts(place) == {1: 1, 2: 1, 3: 1}


def test_an_epoch_is_published_once_however_often_it_is_asked_for(place):
    """By one process and by its successors; a later one is new."""
    one = publisher(place)
    assert [one.publish(place[1], 4, "c", batch(1)) for _ in range(3)] == [True, False, False]
    other = publisher(place)
    assert other.publish(place[1], 4, "c", batch(1)) is False
    assert other.publish(place[1], 5, "d", batch(2)) is True
    assert counts(place) == {1: 1, 2: 1}


def test_a_zombie_in_mid_transaction_is_fenced_and_its_rows_are_nowhere(place):
    """The successor settles what the zombie had open; the zombie's commit is refused."""
    zombie, rows = publisher(place), place[1]
    zombie.publish(rows, 0, "c0", batch(0))

    def overtaken():
        yield Messages([b"9"], [b"9"])
        zombie._producer.flush(10)
        publisher(place).publish(rows, 1, "c1", batch(1))

    with pytest.raises(FencedError):
        zombie.publish(rows, 1, "c1", overtaken)
    assert counts(place) == {0: 1, 1: 1}


def test_a_fork_does_not_fence_its_origin(place):
    """Two stores with one program publish side by side; each has its own marker."""
    origin, fork = publisher(place, "origin"), publisher(place, "fork")
    for epoch in range(3):
        assert origin.publish(place[1], epoch, "o", batch(epoch))
        assert fork.publish(place[1], epoch, "f", batch(100 + epoch))
    assert counts(place) == dict.fromkeys([0, 1, 2, 100, 101, 102], 1)


def test_an_epoch_that_was_set_aside_is_sent_however_late(place):
    """Also one from before the first that was published, and once only."""
    one, rows = publisher(place), place[1]
    for epoch in [2, 3, *range(5, 75)]:
        one.publish(rows, epoch, "c", batch(epoch))
    for epoch in (4, 0):
        assert publisher(place).publish(rows, epoch, "c", batch(epoch))
        assert not publisher(place).publish(rows, epoch, "c", batch(epoch))
    assert counts(place) == dict.fromkeys([0, *range(2, 75)], 1)


def test_a_marker_knows_what_was_published_or_says_that_it_does_not():
    """Epochs that follow each other are one range; beyond the room, nothing is guessed."""
    marker = first_marker(0, "c")
    for epoch in range(2, 2 * KEPT, 2):
        marker = marker.then(epoch, "c")
    assert len(marker.epochs) == KEPT
    assert marker.published(0) and not marker.published(1)
    marker = marker.then(2 * KEPT, "d")
    assert (marker.epoch, marker.checkpoint, marker.forgotten) == (2 * KEPT, "d", 0)
    with pytest.raises(RefusedError, match="not known any more"):
        marker.published(0)
    assert not marker.published(1)
    late = marker.then(3, "e")
    assert (late.epoch, late.checkpoint, late.epochs[0]) == (2 * KEPT, "d", (2, 4))
    assert late.then(5, "e").published(5) and late.forgotten == 0


def test_an_open_transaction_of_another_sink_is_waited_for(place):
    """Its marker may hide ours behind it: a reader that stopped there would send again."""
    world, rows, markers = place
    one = publisher(place)
    one.publish(rows, 0, "c", batch(0))
    other = world.producer(f"other-{rows}")
    other.begin_transaction()
    other.produce(markers, b"x", b"other")
    other.flush()
    one.publish(rows, 1, "c", batch(1))
    successor = publisher(place)
    timer = threading.Timer(1.5, lambda: other.commit_transaction(10))
    timer.start()
    assert successor.publish(rows, 1, "c", batch(1)) is False
    timer.join()
    assert counts(place) == {0: 1, 1: 1}


def test_a_missing_topic_is_named_and_nothing_is_marked(place):
    """After the topic was made, the same epoch is published."""
    world, rows, _ = place
    with pytest.raises(NotFoundError, match="does not exist") as caught:
        publisher(place).publish(f"{rows}-none", 0, "c", batch(1))
    assert caught.value.kind == "unknown_topic"
    assert publisher(place).publish(rows, 0, "c", batch(1))


def test_a_topic_of_markers_that_would_lose_them_is_refused(kafka):
    """Retention would forget what was published."""
    rows, markers = kafka.topic("rows"), kafka.topic("markers", 1)
    with pytest.raises(StorageError, match="would lose them") as caught:
        publisher((kafka, rows, markers)).publish(rows, 0, "c", batch(1))
    assert caught.value.kind == "marker_topic"
