"""A producer that dies: run as a program by the crash tests.

Usage: journal_child.py ROOT BATCHES POINT OCCURRENCE. Every acknowledged batch is printed as
`ack NUMBER SEQUENCE`. With a point, the process dies hard when it is reached the n-th time.
"""

import os
import sys
import uuid

from holdfast import failpoints
from holdfast.errors import NotFoundError
from holdfast.journal import Durability, Event, JournalReader, JournalSettings, JournalWriter

SIZE = 3


def batch(number):
    return [
        Event(
            entity=f"e{number % 4}",
            kind="k",
            payload=b"%d.%d" % (number, i),
            id=uuid.UUID(int=1 + SIZE * number + i),
        )
        for i in range(SIZE)
    ]


def script(root, batches):
    """Append with ids (so that a repeat is idempotent), roll, checkpoint, compact, truncate, hold."""
    with JournalWriter(
        root, JournalSettings(durability=Durability.BATCH, segment_bytes=900, checkpoint_bytes=2000)
    ) as writer:
        for number in range(batches):
            receipt = writer.append(batch(number))
            print("ack", number, receipt.first_sequence, flush=True)
            if number % 6 == 5:
                view = writer.view()
                writer.holds.set(
                    "reader", view.position(max(view.base_sequence, view.visible - 6 * SIZE))
                )
                writer.truncate_before(view.visible)
            if number % 8 == 7:
                writer.compact(target_bytes=5000)
            if number % 5 == 4:
                with JournalReader(root) as reader:
                    reader.cursor("c").commit(reader.view().position())


def main():
    root, batches, point, occurrence = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    left = [occurrence]
    seen = {}

    def die(name):
        seen[name] = seen.get(name, 0) + 1
        if name == point:
            left[0] -= 1
            if left[0] == 0:
                sys.stdout.flush()
                os._exit(137)

    with failpoints.failpoint_handler(die):
        try:
            script(root, batches)
        except NotFoundError as error:
            print("error", error, flush=True)
            raise
    print("seen", " ".join(sorted(seen)), flush=True)


if __name__ == "__main__":
    main()
