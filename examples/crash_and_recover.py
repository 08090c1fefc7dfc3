"""Commit, crash in the middle of the next commit, recover. Run it again: it continues."""

import sys

import holdfast as hf
from holdfast.errors import FencedError
from holdfast.testing import SimulatedCrash, crash_at

root = sys.argv[1] if len(sys.argv) > 1 else ".holdfast-run"
pipeline = hf.checkpoint.topology(
    hf.checkpoint.Part(name="numbers", kind="source", what="counter"),
    hf.checkpoint.Part(
        name="total", kind="operator", what="sum", inputs=["numbers"], stateful=True
    ),
)


def restore(store: hf.checkpoint.Store) -> tuple[int, int]:
    """Where the source stands and what the operator knows: both from one checkpoint."""
    if store.current is None:
        return 0, 0
    position = store.current.sources[0].position
    assert isinstance(position, hf.checkpoint.CounterPosition)
    return position.partitions["0"], int(store.reader.small_state(store.current, "total"))


def step(store: hf.checkpoint.Store) -> None:
    """One epoch: add up the next ten numbers, commit position and total as one."""
    start, total = restore(store)
    with store.draft() as draft:
        draft.set_source("numbers", hf.checkpoint.CounterPosition(partitions={"0": start + 10}))
        draft.put_small("total", str(total + sum(range(start, start + 10))).encode())
        store.commit(draft)


store = hf.checkpoint.open_store(root, "sums", topology=pipeline)
step(store)
read, total = restore(store)
assert total == sum(range(read))
print(f"committed:  {read} numbers, total {total}")

try:
    with crash_at("commit.after_barrier"):  # all files are durable, the commit record is not
        step(store)
except SimulatedCrash as crash:
    print(f"crashed:    {crash.point}")

# A dead process holds no lock. This one only plays dead, so the newcomer has to take over.
again = hf.checkpoint.open_store(root, "sums", topology=pipeline, takeover=True)
assert restore(again) == (read, total), "exactly the old checkpoint: no half of the new one"
print(f"recovered:  {read} numbers, total {total}, next epoch {again.epoch_next}")

try:
    step(store)  # the dead writer was only asleep, and wakes up
except FencedError as fenced:
    print(f"fenced:     {fenced.what}")
else:
    raise AssertionError("a zombie has committed")

step(again)
read, total = restore(again)
assert total == sum(range(read)), "nothing lost, nothing counted twice"
assert hf.checkpoint.verify_store(again.reader, deep=True).ok
print(f"continued:  {read} numbers, total {total}, every byte verified")
again.close()
