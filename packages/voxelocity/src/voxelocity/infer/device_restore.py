"""Classes on the grid of a scan that was resampled, made on the CUDA device of the scores: only they leave it.

`data.prepare.Restoration` is the slow reference, and knows which voxels a tile fills. Imported only where there is
Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import triton

from voxelocity.core.kernels import launch
from voxelocity.core.region import Index3
from voxelocity.data.prepare import Restoration
from voxelocity.infer import arrays, device_arrays
from voxelocity.infer import triton_restore as kernels
from voxelocity_observe.core.device import Device, Host, as_current


class DeviceRestoration:
    """As a `Restoration`, from tiles on a CUDA device. The host waits only in `result`.

    A full device is an error of `add`, after which nothing was written: the tile can be given to the `Restoration`.

    The arguments are those of the `Restoration`, and the device of the tiles.
    """

    def __init__(
        self, restoration: Restoration, device: Device, *, is_softmax: bool, region_order: Sequence[int]
    ) -> None:
        assert not isinstance(device, Host), "kernels work on tensors"
        self._restoration, self._is_softmax = restoration, is_softmax
        self._order = torch.tensor(region_order, dtype=torch.uint8).to(device) if region_order else None
        self._labels = torch.zeros(restoration.shape, dtype=torch.uint8, device=device)
        along = [restoration.neighbors(axis) for axis in range(3)]
        self._below = [torch.from_numpy(below.astype(np.int32)).to(device) for below, _ in along]
        self._share = [torch.from_numpy(share).to(device) for _, share in along]
        # The last voxel that any place needs; places ascend.
        self._last = [int(below[-1]) + (1 if float(share[-1]) > 0.0 else 0) for below, share in along]

    def add(self, sums_kxyz: torch.Tensor, weights_xyz: torch.Tensor | None, *, start: Index3) -> None:
        """Fills every voxel of the scan that the restoration would fill.

        Args:
            sums_kxyz: float32, any steps but 1 along z.
            weights_xyz: likewise; None for 1.
            start: of the tile in the prepared volume.
        """
        num_classes, *shape = sums_kxyz.shape
        rows = self._restoration.reach(start, shape)
        target = self._labels[rows]
        if target.numel() == 0:
            return
        assert shape[2] == 1 or sums_kxyz.stride(3) == 1, f"sums with strides {sums_kxyz.stride()}"
        classes = torch.empty(shape, dtype=torch.uint8, device=sums_kxyz.device)
        logs = torch.empty(shape, device=sums_kxyz.device) if self._is_softmax else None
        device_arrays.classify(classes, sums_kxyz, order=self._order, weights_xyz=weights_xyz, logs_xyz=logs)
        weights = classes if weights_xyz is None else weights_xyz
        tables = [table[here] for along in (self._below, self._share) for table, here in zip(along, rows, strict=True)]
        nx, ny, nz = target.shape
        last = [end - first for end, first in zip(self._last, start, strict=True)]
        with as_current(sums_kxyz.device):
            launch(
                kernels.restore_classes, (triton.cdiv(nx * ny, kernels.ROWS), triton.cdiv(nz, kernels.SIDE)),
                sums_kxyz, weights, classes if self._order is None else self._order,
                classes, classes if logs is None else logs, target, *tables,
                *sums_kxyz.stride()[:3], *weights.stride()[:2], *classes.stride()[:2], *target.stride()[:2],
                *start, *last, num_classes, nx, ny, nz,
                HAS_WEIGHTS=weights_xyz is not None, HAS_ORDER=self._order is not None, IS_SOFTMAX=self._is_softmax,
                ROWS=kernels.ROWS, SIDE=kernels.SIDE,
            )  # fmt: skip

    def result(self) -> npt.NDArray[np.uint8]:
        """The classes, of the restoration's `shape`; 0 where nothing was filled."""
        return arrays.fetch(self._labels)
