"""Named points of the epoch, beside those of the checkpoint core."""

from holdfast.points import reach

__all__ = ["reach"]
