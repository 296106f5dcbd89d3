"""Prepared cases that stay on a CUDA device between validations, as stored, and are decoded there."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch

from voxelocity.core.batch import label_tensor
from voxelocity.core.volume import Scaling, Volume
from voxelocity_observe.core.device import is_out_of_memory

_DTYPES = ("uint8", "int16", "float16", "float32")
# Training needs the rest: it has taken its peak before the first validation, but not for good.
_MOST_OF_DEVICE, _MOST_OF_FREE = 0.1, 0.25


@dataclass(frozen=True, kw_only=True)
class HeldOutVolume:
    """A prepared case on a device.

    Attributes:
        case_id: of the case.
        image: (c, x, y, z) as stored, in C order.
        label: (x, y, z) class indices, as those of a batch.
        scaling: as in `Volume`.
    """

    case_id: str
    image: torch.Tensor
    label: torch.Tensor
    scaling: tuple[Scaling, ...]

    def intensities(self) -> torch.Tensor:
        """As `Volume.intensities`, on the device."""
        image = self.image.to(torch.float32, copy=True)
        for channel, scaling in zip(image, self.scaling, strict=False):
            # Two roundings, as there.
            channel.mul_(float(np.float32(scaling.slope)))
            channel.add_(float(np.float32(scaling.inter)))
        return image


class Residents:
    """Keeps cases on a device while it has room for them next to a training; does nothing on a CPU. For one thread.

    Args:
        device: where they are predicted.
        free_and_total_bytes: of the device; asks its driver if None.
    """

    def __init__(
        self, device: torch.device, *, free_and_total_bytes: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        self._device, self._kept = device, dict[Hashable, HeldOutVolume]()
        self._free_and_total_bytes = free_and_total_bytes or (lambda: torch.cuda.mem_get_info(device))
        self._may_keep, self._num_bytes = device.type == "cuda" or free_and_total_bytes is not None, 0

    def volume(self, key: Hashable, load: Callable[[], Volume]) -> Volume | HeldOutVolume:
        """A case from the device, or loaded, and then kept if there is room."""
        if (kept := self._kept.get(key)) is not None:
            return kept
        volume = load()
        if not self._may_keep or volume.label is None or volume.image.dtype.name not in _DTYPES:
            return volume
        num_bytes = int(volume.image.nbytes) + int(volume.label.size) * (1 if volume.label.dtype == np.uint8 else 4)
        free_bytes, total_bytes = self._free_and_total_bytes()
        if num_bytes > _MOST_OF_FREE * free_bytes or self._num_bytes + num_bytes > _MOST_OF_DEVICE * total_bytes:
            return volume
        try:
            # Copies, as those of the cache are read-only and may be in another order.
            image = torch.from_numpy(np.array(volume.image, order="C")).to(self._device)
            label = label_tensor(volume.label).to(self._device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self._may_keep = False
            return volume
        self._num_bytes += num_bytes
        self._kept[key] = HeldOutVolume(case_id=volume.case_id, image=image, label=label, scaling=volume.scaling)
        return self._kept[key]
