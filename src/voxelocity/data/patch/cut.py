"""A box of a volume, copied once into memory of the caller."""

from __future__ import annotations

import numpy as np

from voxelocity.core.region import Region
from voxelocity.core.volume import Array

_NUM_PLANES = 16


def cut(array_cxyz: Array, region: Region, out: Array, fill: float) -> None:
    """Copies the voxels of `region` into `out`, its dtype converted on the way; nothing else is allocated.

    Args:
        array_cxyz: (c, x, y, z), in any memory order.
        region: what to copy; it may reach beyond the volume.
        out: (c, *region.shape), written as a whole; kept by the caller.
        fill: value of the voxels beyond the volume.

    Raises:
        TypeError: the dtype of `out` cannot hold the kind of number in the array (float into integer).
    """
    _, x, y, z = array_cxyz.shape
    assert out.shape == (array_cxyz.shape[0], *region.shape), f"out {out.shape}, region {region.shape}"
    inside = region.clip((x, y, z))
    if inside != region:
        out.fill(fill)
    in_out = inside.shifted((-region.start[0], -region.start[1], -region.start[2]))
    source_part, target_part = array_cxyz[:, *inside.slices], out[:, *in_out.slices]
    if array_cxyz.strides[3] <= array_cxyz.strides[1]:
        np.copyto(target_part, source_part, casting="same_kind")
        return
    # The array lies in the order of a NIfTI file, x fastest. In slabs of a few z planes a cache line stays at hand
    # until all of it is used: 1.9 ms instead of 4.6 ms for a 96^3 float32 patch of 256 x 256 x 128 (2 cores).
    for z_start in range(0, target_part.shape[3], _NUM_PLANES):
        slab = slice(z_start, z_start + _NUM_PLANES)
        np.copyto(target_part[..., slab], source_part[..., slab], casting="same_kind")
