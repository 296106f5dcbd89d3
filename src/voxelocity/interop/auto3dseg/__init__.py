"""Auto3DSeg's GPU customization by this package's tuning: public as `voxelocity.monai.auto3dseg`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from voxelocity.core.first_use import first_use
from voxelocity.interop.auto3dseg import quiet as quiet  # imports MONAI's and restores the process state

if TYPE_CHECKING:
    from voxelocity.interop.auto3dseg.bundle_gen import BundleGen
    from voxelocity.interop.auto3dseg.customizing import customize, undo
    from voxelocity.interop.auto3dseg.specs import read_specs

__all__ = ["BundleGen", "customize", "read_specs", "undo"]

# A trial runs `measure`, which the others import, as a program.
__getattr__ = first_use(
    __name__, {"bundle_gen": ("BundleGen",), "customizing": ("customize", "undo"), "specs": ("read_specs",)}
)
