"""MONAI's random transforms as steps of the fused augmentation: drawn as MONAI draws them, made in few passes."""

from voxelocity.interop.monai.lower.lowering import Lowering, Lowerings
from voxelocity.interop.monai.lower.sketch import Sketch

__all__ = ["Lowering", "Lowerings", "Sketch"]
