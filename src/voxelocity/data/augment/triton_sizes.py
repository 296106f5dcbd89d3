"""Arguments of the augmentation's kernels that are sizes."""

from __future__ import annotations

from typing import Final

SIZES: Final = (
    *("nx", "ny", "nz", "points_x", "points_y", "points_z", "num_taps", "side", "inner"),
    *("tiles_y", "tiles_z"),
)
"""Arguments for whose values Triton must not compile a kernel again: it does by default where one is 1 or a multiple of
16. `num_voxels` stays out, as its being a multiple of 16 is what lets a thread load 16 bytes at once, and patches with
another number of voxels are rare; so does `num_channels`, which no run changes."""
