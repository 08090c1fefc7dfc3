import uuid

from holdfast.clock import ManualClock
from holdfast.journal import Event, JournalSettings, JournalWriter, SeededEventIds

ID = bytes(range(16))


def open_writer(root, files=None, **settings):
    return JournalWriter(
        root,
        JournalSettings(**settings),
        clock=ManualClock(),
        ids=SeededEventIds(1),
        files=files,
        journal_id=ID,
    )


def some(count, start=0, **extra):
    return [
        Event(
            entity=f"e{(start + i) % 5}",
            scope=f"s{(start + i) % 2}",
            kind=f"k{(start + i) % 3}",
            correlation=uuid.UUID(int=1000 + (start + i) % 4),
            causation=uuid.UUID(int=start + i) if start + i else None,
            payload=b"p%d" % (start + i),
            id=uuid.UUID(int=start + i + 1),
            **extra,
        )
        for i in range(count)
    ]


def fill(root, batches=8, size=5, **settings):
    """A small journal of several segments; returns the receipts."""
    settings.setdefault("segment_bytes", 2000)
    with open_writer(root, **settings) as writer:
        return [writer.append(some(size, start=size * n)) for n in range(batches)]
