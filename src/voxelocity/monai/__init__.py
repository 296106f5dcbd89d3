"""What a MONAI script imports instead of MONAI's own: the same names, signatures and results, faster.

The code is in `voxelocity.interop.monai`; this package only re-exports it.
"""

from __future__ import annotations

from voxelocity.interop.monai import *  # noqa: F403
from voxelocity.interop.monai import __all__ as __all__
