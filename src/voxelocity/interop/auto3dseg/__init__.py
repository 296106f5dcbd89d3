"""Auto3DSeg's GPU customization by this package's tuning: public as `voxelocity.monai.auto3dseg`."""

from __future__ import annotations

from voxelocity.interop.auto3dseg import quiet as quiet  # first: imports MONAI's and restores the process state

# isort: split
from voxelocity.interop.auto3dseg.bundle_gen import BundleGen
from voxelocity.interop.auto3dseg.customizing import customize, undo
from voxelocity.interop.auto3dseg.specs import read_specs

__all__ = ["BundleGen", "customize", "read_specs", "undo"]
