"""Auto3DSeg's GPU customization by this package's tuning: public as `voxelocity.monai.auto3dseg`.

`specs` is what is asked for, `templates` knows which keys set what in MONAI's four templates, `steps` are the
templates' own, `measure` is the process of a trial, `algorithms` reads and writes a work folder by MONAI, `originals`
keeps what is replaced and puts it back, `customizing` is the whole of it, with the drop-in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from voxelocity.core.quiet_import import import_quietly
from voxelocity_observe.core.first_use import first_use

if TYPE_CHECKING:
    from voxelocity.tuning.auto3dseg.customizing import BundleGen, customize, undo
    from voxelocity.tuning.auto3dseg.specs import read_specs

__all__ = ["BundleGen", "customize", "read_specs", "undo"]

import_quietly("monai.apps.auto3dseg")
# A trial runs `measure`, which the others import, as a program.
__getattr__ = first_use(__name__, {"customizing": ("BundleGen", "customize", "undo"), "specs": ("read_specs",)})
