"""Testing: faults, crash points, power cuts, a reference model. Shipped, needs no test framework.

Hypothesis strategies are in `holdfast.testing.strategies`, the only module that imports Hypothesis.
"""

from holdfast.testing.crash import Crash, SimulatedCrash, crash_at, points_reached
from holdfast.testing.faults import Fault, FaultyDisk, FaultyStorage
from holdfast.testing.model import Model, ModelCheckpoint
from holdfast.testing.powercut import PowerCut, RecordingDisk
from holdfast.testing.wrap import CountingStorage, HookedStorage, WrappedStorage, WrappedWriter

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
    "points_reached",
]
