"""The device tier: prepared volumes in the accelerator's memory, in their stored form, side by side in one buffer."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from voxelocity.core.contracts import ResidentBox
from voxelocity.core.region import Region
from voxelocity.core.volume import Array, Grid, Scaling, Volume, VolumeSpec
from voxelocity.data.cache.locks import ThreadLocks
from voxelocity_observe.core.errors import CacheError, CacheFullError, EntryTooLargeError

DTYPES = ("int16", "uint8", "float16", "float32")
_ALIGN_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class DeviceVolume:
    """A prepared volume on a device. A `core.contracts.StoredVolume` and a `core.contracts.ResidentVolume`.

    `locate` costs nothing; `read` and `load` copy to the host and wait for it. The memory stays as long as the tier or
    any of its volumes does.

    Attributes:
        memory: (n,) uint8 on the device, of the whole tier.
        image_start_byte: where the image begins, in C order.
        label_start_byte: where the label begins, in C order; -1 without one.
        trace: as in `Volume`.
    """

    case_id: str
    spec: VolumeSpec
    scaling: tuple[Scaling, ...]
    memory: torch.Tensor = field(repr=False)
    image_start_byte: int
    label_start_byte: int
    trace: tuple[Mapping[str, Any], ...] = ()
    foreground: Mapping[int, Array] = field(default_factory=dict)

    @property
    def grid(self) -> Grid:
        return self.spec.grid

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        label_bytes = self.grid.num_voxels if self.label_start_byte >= 0 else 0
        return _aligned(self.spec.image_bytes) + _aligned(label_bytes)

    def renamed(self, case_id: str) -> DeviceVolume:
        """The same voxels under another case id."""
        return replace(self, case_id=case_id)

    def locate(self, region: Region) -> ResidentBox:
        """Where the stored voxels of a box inside the volume lie."""
        assert self.label_start_byte >= 0, f"case '{self.case_id}' has no label"
        _, ny, nz = self.grid.shape
        first = (region.start[0] * ny + region.start[1]) * nz + region.start[2]
        return ResidentBox(
            memory=self.memory,
            dtype=self.spec.dtype,
            shape=region.shape,
            image_offset=self.image_start_byte // np.dtype(self.spec.dtype).itemsize + first,
            image_steps=(self.grid.num_voxels, ny * nz, nz, 1),
            label_offset=self.label_start_byte + first,
            label_steps=(ny * nz, nz, 1),
        )

    def read(self, region: Region) -> tuple[Array, Array | None]:
        """The stored voxels of a box inside the volume, copied to the host: image (c, *shape) and label (*shape)."""
        image = self._view(self.image_start_byte, self.spec.dtype, (self.spec.num_channels, *self.grid.shape))
        image = image[(slice(None), *region.slices)]
        if self.label_start_byte < 0:
            return image.cpu().numpy(), None
        label = self._view(self.label_start_byte, "uint8", self.grid.shape)[region.slices]
        return image.cpu().numpy(), label.cpu().numpy()

    def load(self) -> Volume:
        """The whole volume in host memory."""
        image, label = self.read(Region((0, 0, 0), self.grid.shape))
        return Volume(
            case_id=self.case_id,
            image=image,
            label=label,
            grid=self.grid,
            scaling=self.scaling,
            trace=self.trace,
            foreground=self.foreground,
        )

    def _view(self, start_byte: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        stop = start_byte + math.prod(shape) * np.dtype(dtype).itemsize
        return self.memory[start_byte:stop].view(getattr(torch, dtype)).reshape(shape)


class DeviceTier:
    """Volumes in a device's memory, kept as long as the tier exists: none is dropped for another.

    Safe to use from several threads of one process. The memory is taken at once, when the tier is made.

    Args:
        max_bytes: how much of the device's memory to take.
        device: where to take it.

    Raises:
        CacheFullError: the device does not have that much memory left.
    """

    def __init__(self, max_bytes: int, device: torch.device | str = "cuda") -> None:
        self._max_bytes = max_bytes // _ALIGN_BYTES * _ALIGN_BYTES
        try:
            self._memory = torch.empty(self._max_bytes, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError as error:
            raise CacheFullError(
                f"cache.device: {device} has no {self._max_bytes / 1e9:.1f} GB left; lower data.cache.device_max_bytes"
            ) from error
        # A separate stream, first in line: copies on the default stream would wait for the training's kernels.
        self._stream: torch.cuda.Stream | None = None
        if self._memory.is_cuda:
            self._stream = torch.cuda.Stream(self._memory.device, priority=-1)  # type: ignore[no-untyped-call]
        if self._stream is not None:
            # The memory may have belonged to a tensor that work on the current stream still uses.
            self._stream.wait_stream(torch.cuda.current_stream(self._memory.device))
        self._num_bytes = 0
        self._given_back: list[tuple[int, int]] = []
        """Start and size of pieces whose volume could not be copied."""
        self._volumes: dict[str, DeviceVolume] = {}
        self._lock = threading.Lock()
        self._builders = ThreadLocks()

    def get(self, key: str) -> DeviceVolume | None:
        with self._lock:
            return self._volumes.get(key)

    def put(self, key: str, volume: Volume) -> None:
        """Copies the volume to the device, finished when this returns. A key that is already kept stays unchanged.

        Raises:
            CacheError: the device's kernels do not read its dtype.
            EntryTooLargeError: it is larger than the whole tier.
            CacheFullError: there is no room left for it.
        """
        if volume.image.dtype.name not in DTYPES or not volume.image.dtype.isnative:
            raise CacheError(
                f"cache.device: case '{volume.case_id}' is stored as {volume.image.dtype.str}, a device keeps "
                f"{', '.join(DTYPES)}; set data.prepare.dtype to one of them"
            )
        if volume.label is not None and volume.label.dtype != np.uint8:
            raise CacheError(
                f"cache.device: case '{volume.case_id}' has more than 256 classes, whose label a device does not keep; "
                "set data.cache.device_max_bytes to 0"
            )
        image_bytes = _aligned(volume.image.nbytes)
        size = image_bytes + (0 if volume.label is None else _aligned(volume.label.nbytes))
        with self._lock:
            if key in self._volumes:
                return
            start = self._take(volume.case_id, size)
        kept = DeviceVolume(
            case_id=volume.case_id,
            spec=volume.spec,
            scaling=volume.scaling,
            memory=self._memory,
            image_start_byte=start,
            label_start_byte=-1 if volume.label is None else start + image_bytes,
            trace=volume.trace,
            foreground=volume.foreground,
        )
        try:
            with torch.cuda.stream(self._stream) if self._stream is not None else contextlib.nullcontext():
                self._copy(volume.image, kept.image_start_byte)
                if volume.label is not None:
                    self._copy(volume.label, kept.label_start_byte)
            if self._stream is not None:
                # Others read it on their own streams.
                self._stream.synchronize()
        except BaseException:
            with self._lock:
                self._given_back.append((start, size))
            raise
        with self._lock:
            self._volumes[key] = kept

    def drop(self, key: str) -> None:
        """Forgets this entry if there is one. Volumes already handed out stay valid, so its room is not used again."""
        with self._lock:
            self._volumes.pop(key, None)

    def lock(self, key: str) -> AbstractContextManager[None]:
        return self._builders.hold(key)

    def _take(self, case_id: str, size: int) -> int:
        if size > self._max_bytes:
            raise EntryTooLargeError(
                f"cache.device: case '{case_id}' takes {size / 1e6:.1f} MB, the whole tier is "
                f"{self._max_bytes / 1e6:.1f} MB; raise data.cache.device_max_bytes"
            )
        for number, (start, free) in enumerate(self._given_back):
            if size <= free:
                self._given_back[number] = (start + size, free - size)
                return start
        if self._num_bytes + size > self._max_bytes:
            raise CacheFullError(
                f"cache.device: no space for case '{case_id}' of {size / 1e6:.1f} MB, "
                f"{(self._max_bytes - self._num_bytes) / 1e6:.1f} MB of {self._max_bytes / 1e6:.1f} MB are left; raise "
                "data.cache.device_max_bytes"
            )
        start = self._num_bytes
        self._num_bytes += size
        return start

    def _copy(self, array: Array, start_byte: int) -> None:
        line = torch.from_numpy(np.array(array, order="C").reshape(-1).view(np.uint8))
        self._memory[start_byte : start_byte + line.numel()].copy_(line)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
