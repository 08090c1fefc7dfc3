"""Testing: faults, crash points, power cuts, a reference model. Shipped, needs no test framework.

Hypothesis strategies are in `holdfast.testing.strategies`, the only module that imports Hypothesis.
"""

from holdfast.storage.local.disk import installed_disk
from holdfast.testing.crash import Crash, SimulatedCrash, crash_at, failpoints_reached
from holdfast.testing.faulty_storage import Fault, FaultyDisk, FaultyStorage
from holdfast.testing.model import Model, ModelCheckpoint
from holdfast.testing.power_cut import PowerCut, RecordingDisk
from holdfast.testing.wrapped_storage import (
    CountingStorage,
    HookedStorage,
    WrappedStorage,
    WrappedWriter,
)

__all__ = [
    "CountingStorage",
    "Crash",
    "Fault",
    "FaultyDisk",
    "FaultyStorage",
    "HookedStorage",
    "Model",
    "ModelCheckpoint",
    "PowerCut",
    "RecordingDisk",
    "SimulatedCrash",
    "WrappedStorage",
    "WrappedWriter",
    "crash_at",
    "failpoints_reached",
    "installed_disk",
]
