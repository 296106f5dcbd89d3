"""Where the sum of a volume's logits is kept: on the device, else in main memory, else in a file."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from voxelocity.core.volume import Array
from voxelocity.infer import arrays
from voxelocity.infer.arrays import Values
from voxelocity_observe.core.device import Device, Host, is_out_of_memory
from voxelocity_observe.core.errors import ScanError
from voxelocity_observe.core.host import available_memory_bytes, file_system_of, free_disk_bytes, is_in_memory
from voxelocity_observe.core.warn_once import WarnOnce

_WRITTEN_BYTES = 1 << 24


class Accumulators:
    """Makes room for sums of logits where there is any, and says once why it is not where it is fastest.

    Args:
        device: of the network.
        folder: for the file, which has no name and is gone when the process ends; the system's temporary folder if
            None.
        warn: called with one sentence for each place that is too small.
        on_device: whether the device is tried first.
    """

    def __init__(
        self, device: Device, folder: Path | None, warn: Callable[[str], None], *, on_device: bool = True
    ) -> None:
        self._is_on_device = on_device and device.type != "cpu"
        self._device, self._host = device, arrays.main_memory_of(device)
        self._folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._warn = WarnOnce(warn)

    def zeros(self, shape_kxyz: tuple[int, ...]) -> Values:
        """Zeros, float32, in the first place with room.

        Raises:
            ScanError: neither the device nor main memory nor the disk has room.
        """
        if self._is_on_device:
            try:
                return arrays.zeros(shape_kxyz, self._device)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                self.say_device_is_full()
        return self._off_device(shape_kxyz)

    def place(self, num_bytes: int) -> str:
        """Where a sum of this size would go by the memory that is free now, in words."""
        if not isinstance(self._device, Host) and self._device.type == "cuda":
            import torch

            if num_bytes <= torch.cuda.mem_get_info(self._device)[0]:
                return f"the memory of the device ({self._device})"
        return "main memory" if num_bytes <= available_memory_bytes() else f"a file in {self._folder}"

    def move_off_device(self, total: Values) -> Values:
        """The same sum in main memory or a file.

        Raises:
            ScanError: neither main memory nor the disk has room.
        """
        self.say_device_is_full()
        kept = self._off_device(tuple(total.shape))
        kept[...] = total
        return kept

    def say_device_is_full(self) -> None:
        """Warns once."""
        self._warn(
            "device",
            f"infer: the memory of the device ({self._device}) is too small for a scan and the logits of its "
            "classes; they are kept in main memory, which is slower",
        )

    def _off_device(self, shape: tuple[int, ...]) -> Values:
        needed_bytes, free_bytes = 4 * math.prod(shape), available_memory_bytes()
        # Checked first: the system grants memory that it does not have, and kills the program when it writes there.
        if needed_bytes <= free_bytes:
            try:
                return arrays.zeros(shape, self._host)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
        needed = (
            f"the scores of {shape[0]} classes for {' x '.join(map(str, shape[1:]))} prepared voxels take "
            f"{needed_bytes / 1e9:.1f} GB of memory, and {free_bytes / 1e9:.1f} GB are free"
        )
        try:
            total = self._in_file(shape)
        except OSError as error:
            raise ScanError(
                f"{needed}; a file in {self._folder} cannot hold them either ({error.strerror}): free some memory or "
                "disk space, use a machine with more, or crop the scan"
            ) from None
        self._warn("host", f"infer: {needed}; they are kept in a file in {self._folder}, which is slower")
        return total

    def _in_file(self, shape: tuple[int, ...]) -> Values:
        if is_in_memory(file_system_of(self._folder)):
            raise OSError(0, "that folder is in main memory")
        return arrays.of_numpy(unnamed_file(self._folder, shape, np.float32), self._host)


def unnamed_file(folder: Path, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Zeros in a file that has no name and is gone when the process ends.

    Raises:
        OSError: the folder has no room for it, or cannot be written.
    """
    needed_bytes = np.dtype(dtype).itemsize * math.prod(shape)
    if needed_bytes > (free_bytes := free_disk_bytes(folder)):
        raise OSError(0, f"{free_bytes / 1e9:.1f} GB are free there")
    with tempfile.TemporaryFile(dir=folder) as file:
        # Reserved now: a full disk would otherwise end the process at a write to the mapped memory.
        _reserve(file, needed_bytes)
        return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


def _reserve(file: IO[bytes], num_bytes: int) -> None:
    """Makes a file this large, on the disk itself.

    Raises:
        OSError: the disk has no room.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return
    # macOS has no such call.
    for start in range(0, num_bytes, _WRITTEN_BYTES):
        file.write(bytes(min(_WRITTEN_BYTES, num_bytes - start)))
    file.flush()
