"""`LoadImage`: NIfTI voxels by this package's gunzip, all else by MONAI's reader."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from monai.data import NibabelReader
from monai.transforms import LoadImage, LoadImaged
from monai.utils import get_equivalent_dtype

from voxelocity.core.memory_order import in_c_order
from voxelocity.core.volume import Array, slabs
from voxelocity.data.decode import read_unpacked
from voxelocity.monai.deterministic.shadow import replaces, shadow
from voxelocity_observe.core.errors import ScanError

_SLAB_VALUES = 1 << 20
_MAX_VALUE_BYTES = 8
_LEAST_AXES_TO_TURN = 3
_CONVERTED_HERE = ("float32", "float64")
_WIDE_INTEGERS = ("int64", "uint64")


def _why_not(loader: LoadImage) -> str:
    readers = [reader for reader in loader.readers if type(reader) is NibabelReader]
    if not readers:
        return "none of its readers is MONAI's NibabelReader"
    if any(reader.to_gpu for reader in readers):
        return "its reader reads into the memory of a GPU (to_gpu=True)"
    if any(reader.as_closest_canonical for reader in readers):
        return "its reader reorients while reading (as_closest_canonical=True); use Orientationd instead"
    return ""


@replaces(LoadImage, LoadImaged, held_as="_loader", why_not=_why_not)
class FastLoadImage:
    """A `LoadImage` whose NIfTI voxels come from this package; called as MONAI's. Thread-safe.

    Files of any other kind, and NIfTI files that are damaged, are read by MONAI, so its errors stay the same. Where it
    takes a damaged file, a warning says so.
    """

    def __init__(self, loader: LoadImage) -> None:
        self._loader = loader

    @property
    def image_only(self) -> bool:
        """Whether only the image is returned, without separate metadata."""
        return bool(self._loader.image_only)

    def __call__(self, filename: Any, reader: Any = None) -> Any:
        if reader is not None:
            return self._loader(filename, reader)
        # MONAI's reader keeps the names of the files it is reading: each call needs its own.
        readers = [_fast_reader(r, self._loader.dtype) if type(r) is NibabelReader else r for r in self._loader.readers]
        return shadow(self._loader, readers=readers)(filename)


def _fast_reader(reader: NibabelReader, dtype: Any) -> NibabelReader:
    own = shadow(reader)
    wanted = None if dtype is None else np.dtype(get_equivalent_dtype(dtype, np.ndarray))

    def read(data: Any, **options: Any) -> Any:
        found = NibabelReader.read(own, data, **options)
        # Stacked with files of other types, these would be rounded once more than MONAI rounds them.
        is_wide = isinstance(found, list) and any(i.dataobj.dtype.name in _WIDE_INTEGERS for i in found)
        own._get_array_data = lambda img, filename: _array(img, Path(filename), None if is_wide else wanted)
        return found

    own.read = read
    return own


def _array(img: Any, path: Path, wanted: np.dtype[Any] | None) -> Array:
    """What the reader takes from one file: in C order and the wanted type if the loader would convert it anyway."""
    proxy = img.dataobj
    if (
        type(img) not in (nib.Nifti1Image, nib.Nifti2Image)
        or not isinstance(proxy, nib.arrayproxy.ArrayProxy)
        or not path.name.lower().endswith((".nii", ".nii.gz"))
        or proxy.order != "F"
        or proxy.dtype.kind not in "iuf"
        or proxy.dtype.itemsize > _MAX_VALUE_BYTES
    ):
        return np.asanyarray(proxy)
    num_bytes = math.prod(proxy.shape) * proxy.dtype.itemsize
    try:
        data = read_unpacked(path, num_expected=proxy.offset + num_bytes)
    except ScanError as error:
        array: Array = np.asanyarray(proxy)
        # Of 200 files with one bit changed, nibabel read 172: the checksum lies behind the bytes that it asks for.
        warnings.warn(f"{error} (MONAI's code reads it, and its voxels may be wrong)", stacklevel=2)
        return array
    stored = data[proxy.offset :].view(proxy.dtype).reshape(proxy.shape, order="F")
    values = stored if (proxy.slope, proxy.inter) == (1.0, 0.0) else _scaled(stored, proxy.slope, proxy.inter, wanted)
    if wanted is not None and wanted.name in _CONVERTED_HERE and values.ndim >= _LEAST_AXES_TO_TURN:
        values = in_c_order(values, wanted)
    return values if values.flags.writeable else values.copy(order="K") if values.flags.c_contiguous else values


def _scaled(stored: Array, slope: float, inter: float, wanted: np.dtype[Any] | None) -> Array:
    """In float64, as nibabel scales, because the header's numbers are of that type."""
    dtype = np.float32 if wanted == np.float32 else np.float64
    scaled = np.empty_like(stored, dtype=dtype)
    for source, target in slabs(stored, scaled, max_values=_SLAB_VALUES):
        values = source.astype(np.float64)
        values *= slope
        values += inter
        target[...] = values
    return scaled
