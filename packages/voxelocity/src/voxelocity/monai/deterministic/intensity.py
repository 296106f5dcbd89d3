"""`ScaleIntensityRange` and `NormalizeIntensity`, each in one or two passes over the memory of a float32 volume."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from monai.transforms import NormalizeIntensity, NormalizeIntensityd, ScaleIntensityRange, ScaleIntensityRanged
from monai.utils import convert_data_type

from voxelocity.core.memory_order import in_c_order
from voxelocity.core.volume import Array, slabs
from voxelocity.monai.deterministic.native_loops import moments, normalize
from voxelocity.monai.deterministic.shadow import is_whole_volume, replaces, voxels, with_meta

_DTYPES = frozenset({torch.float32})
_SLAB_VALUES = 1 << 16


def _why_not_range(transform: ScaleIntensityRange) -> str:
    for name in ("a_min", "a_max", "b_min", "b_max"):
        value = getattr(transform, name)
        if not (_is_number(value) or (value is None and name.startswith("b"))):
            return f"{name}={value!r} is not a plain number"
    if transform.a_max - transform.a_min == 0:
        return f"a_min and a_max are both {transform.a_min}"
    if transform.clip and transform.b_min is None and transform.b_max is None:
        return "clip=True without b_min and b_max is an error"
    return ""


@replaces(ScaleIntensityRange, ScaleIntensityRanged, held_as="scaler", why_not=_why_not_range)
class FastScaleRange:
    """`ScaleIntensityRange` of volumes (c, x, y, z) float32, the same to the last bit. Thread-safe."""

    def __init__(self, transform: ScaleIntensityRange) -> None:
        self._transform = transform

    def __call__(self, img: Any) -> Any:
        transform = self._transform
        if not is_whole_volume(img, _DTYPES):
            return transform(img)
        b_min, b_max = (None if bound is None else np.float32(bound) for bound in (transform.b_min, transform.b_max))
        start, width = np.float32(transform.a_min), np.float32(transform.a_max - transform.a_min)
        source, out = _source_and_target(voxels(img))
        # Rounded step by step as torch rounds it, slab by slab in the processor's cache; silent as torch is.
        with np.errstate(all="ignore"):
            for values, target in slabs(source, out, max_values=_SLAB_VALUES):
                np.subtract(values, start, out=target)
                target /= width
                if b_min is not None and b_max is not None:
                    target *= np.float32(transform.b_max - transform.b_min)
                    target += b_min
                if transform.clip:
                    np.clip(target, b_min, b_max, out=target)
        return convert_data_type(with_meta(out, img), dtype=transform.dtype or img.dtype)[0]


def _why_not_normalize(transform: NormalizeIntensity) -> str:
    for name in ("subtrahend", "divisor"):
        value = getattr(transform, name)
        values = value if transform.channel_wise and isinstance(value, (list, tuple)) else [value]
        if value is not None and not all(_is_number(number) for number in values):
            return f"{name} is neither a plain number nor a list of one per channel"
        if transform.channel_wise and _is_number(value):
            return f"{name}={value!r} is one number although channel_wise=True"
    return ""


@replaces(NormalizeIntensity, NormalizeIntensityd, held_as="normalizer", why_not=_why_not_normalize)
class FastNormalize:
    """`NormalizeIntensity` in two passes, with mean and deviation summed in float64. Thread-safe.

    Volumes (c, x, y, z) float32; the argument keeps its values, which MONAI overwrites.
    """

    def __init__(self, transform: NormalizeIntensity) -> None:
        self._transform = transform

    def __call__(self, img: Any) -> Any:
        transform = self._transform
        given = (transform.subtrahend, transform.divisor)
        is_ours = is_whole_volume(img, _DTYPES) and not (
            transform.channel_wise and any(part is not None and len(part) != len(img) for part in given)
        )
        if not is_ours:
            return transform(img)
        source, out = _source_and_target(voxels(img))
        parts = list(zip(source, out, strict=True)) if transform.channel_wise else [(source, out)]
        for index, (values, target) in enumerate(parts):
            mean, deviation = ((part[index] if isinstance(part, (list, tuple)) else part) for part in given)
            _normalize(values.reshape(-1), target.reshape(-1), mean, deviation, bool(transform.nonzero))
        return convert_data_type(with_meta(out, img), dtype=transform.dtype or img.dtype)[0]


def _normalize(values: Array, out: Array, mean: float | None, deviation: float | None, is_nonzero_only: bool) -> None:
    if mean is None or deviation is None:
        # Subtracted first, so that the squares of a large mean do not swallow the deviation.
        shift = float(values[np.argmax(values != 0)]) if is_nonzero_only else float(values[0])
        num, total, squares = moments(values, shift, is_nonzero_only=is_nonzero_only)
        around = total / num if num else 0.0
        mean = shift + around if mean is None else mean
        deviation = math.sqrt(max(0.0, squares / num - around**2)) if deviation is None and num else deviation
    # A deviation of zero, or none because all voxels are zero, leaves the scale unchanged.
    scale = float(np.float32(deviation or 0.0)) or 1.0
    normalize(values, out, mean, scale, is_nonzero_only=is_nonzero_only)


def _source_and_target(image: Array) -> tuple[Array, Array]:
    """Two arrays in C order, the second to be written; they are the same if the image had to be copied anyway."""
    source = in_c_order(image, image.dtype)
    return (source, np.empty_like(source)) if source is image else (source, source)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
