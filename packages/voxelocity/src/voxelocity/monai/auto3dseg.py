"""What a script imports instead of `monai.apps.auto3dseg.BundleGen`, and its GPU customization alone.

The code is in `voxelocity.tuning.auto3dseg`; this module only re-exports it.
"""

from __future__ import annotations

from voxelocity.tuning.auto3dseg import BundleGen, customize, undo

__all__ = ["BundleGen", "customize", "undo"]
