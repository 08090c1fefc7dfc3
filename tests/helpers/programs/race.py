"""Many processes that want one store: each opens, commits and is stopped; all of them are told.

Run as a program, it forks the processes, stops and continues them at random, and prints as JSON
what each was told. The history of all commits travels in the state, so that nothing can be lost
without being missed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from holdfast import Settings
from holdfast.checkpoint import CounterPosition, Part, open_store, topology
from holdfast.clock import SystemClock
from holdfast.errors import CommitUnknownError, ConflictError, HoldfastError
from holdfast.failpoints import failpoint_handler
from holdfast.storage import open_storage

NAME = "race"
TOPOLOGY = topology(
    Part(name="n", kind="source", what="counter"),
    Part(name="t", kind="operator", what="list", inputs=["n"], stateful=True),
)
SETTINGS = Settings(exclusive=False, retain=2, base_every_min=8, inline_bytes_max=1 << 20)
SLEEPY = (
    "commit.after_barrier", "open.before_record", "open.after_record", "compact.before_base",
    "compact.after_base", "compact.after_first_delete", "commit.after_record",
)  # fmt: skip


def history(reader, manifest):
    """The values of all commits that led here."""
    return [] if manifest is None else json.loads(reader.small_state(manifest, "t"))


def commit(store, value, told):
    """One more value; `told` is what the caller was told."""
    values = [*history(store.reader, store.current), value]
    with store.draft() as draft:
        draft.set_source("n", CounterPosition(partitions={"0": len(values)}))
        draft.put_small("t", json.dumps(values).encode())
        summary = store.commit(draft)
    told.append((summary.sequence, len(values), value))
    return summary


class Log:
    """Lines of one process, each written before anything else happens."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def append(self, line):
        os.write(self._file, (json.dumps(line) + "\n").encode())


def live(arguments, number, path):
    """One process: open, commit until it is fenced or has had enough, open again."""
    chance = random.Random(f"{arguments['seed']}/{number}")
    log = Log(path)
    end = time.monotonic() + arguments["seconds"]

    def doze(name):
        if name in SLEEPY and chance.random() < 0.04:
            os.kill(os.getpid(), signal.SIGSTOP)
        if name == "compact.after_base":
            log.append(["compacted"])

    value = number * 1_000_000
    storage = open_storage(arguments["root"], options=arguments["options"])
    with failpoint_handler(doze):
        while time.monotonic() < end:
            try:
                store = open_store(
                    storage, NAME, topology=TOPOLOGY, settings=SETTINGS, takeover=True,
                    clock=SystemClock(), clean_up=chance.random() < 0.3,
                )  # fmt: skip
                for _ in range(chance.randint(1, 12)):
                    told = []
                    commit(store, value := value + 1, told)
                    log.append(["done", *told[0]])
                    if chance.random() < 0.2:
                        store.retain()
                    if time.monotonic() > end:
                        break
            except ConflictError as error:
                log.append(["fenced", error.kind])
            except CommitUnknownError as error:
                log.append(["unknown", error.kind])
            except HoldfastError as error:
                # A writer that was overtaken may find that what it reads was retired.
                retired = error.kind in ("retired", "busy_catalog", "draft_file_differs")
                log.append(["fenced" if retired else "error", f"{error.kind}: {error}"])
            time.sleep(chance.random() * 0.05)


def disturb(arguments, children):
    """Stop and continue at random, until the time is over; then everybody runs to the end."""
    chance = random.Random(arguments["seed"])
    end = time.monotonic() + arguments["seconds"]
    stopped = 0
    while time.monotonic() < end:
        child = chance.choice(children)
        os.kill(child, signal.SIGSTOP)
        stopped += 1
        time.sleep(chance.random() * 0.02)
        for one in chance.sample(children, k=max(1, len(children) // 6)):
            os.kill(one, signal.SIGCONT)
    waiting = set(children)
    while waiting:
        for child in sorted(waiting):
            os.kill(child, signal.SIGCONT)
            if os.waitpid(child, os.WNOHANG)[0]:
                waiting.discard(child)
        time.sleep(0.02)
    return stopped


def main(arguments):
    """Fork, disturb, gather."""
    with tempfile.TemporaryDirectory(prefix="holdfast-race-") as folder:
        logs = [Path(folder) / str(number) for number in range(arguments["processes"])]
        children = []
        for number, path in enumerate(logs, start=1):
            child = os.fork()
            if child == 0:
                try:
                    live(arguments, number, path)
                except BaseException as error:  # noqa: BLE001 - shown by the parent
                    Log(path).append(["error", f"{type(error).__name__}: {error}"])
                os._exit(0)
            children.append(child)
        stopped = disturb(arguments, children)
        lines = [json.loads(t) for p in logs if p.exists() for t in p.read_text().splitlines()]
    print(
        json.dumps(
            {
                "seed": arguments["seed"],
                "told": [line[1:] for line in lines if line[0] == "done"],
                "errors": [line[1] for line in lines if line[0] == "error"],
                "fenced": sum(line[0] == "fenced" for line in lines),
                "compactions": sum(line[0] == "compacted" for line in lines),
                "stopped": stopped,
            }
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
