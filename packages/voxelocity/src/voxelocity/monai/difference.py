"""How two results of transforms differ, value by value."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from monai.data.meta_tensor import MetaTensor
from monai.data.utils import affine_to_spacing

_META_RTOL = 1e-5
"""For affines and for arrays in the metadata, such as `pixdim`, which is computed from the affine in float32."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How one tensor of the result differs.

    Attributes:
        key: of the item, "" for a bare tensor; with the number of the sample where there are several.
        largest: largest absolute difference of two voxels.
        scale: largest absolute value of MONAI's tensor, infinities and NaN left out.
        share: of the voxels that differ at all.
        is_whole: whether MONAI's tensor holds only whole numbers, as labels do.
        words: what else differs, in words: type, dtype, shape, affine. "" for nothing.
        metadata: which of the metadata differ but for the affine, in words. "" for none.
    """

    key: str
    largest: float
    scale: float
    share: float
    is_whole: bool
    words: str
    metadata: str = ""

    @property
    def relative(self) -> float:
        """The largest difference as a share of the largest value."""
        return self.largest / self.scale if self.scale > 0.0 else self.largest


def differences_of(theirs: Any, ours: Any, key: str = "") -> Iterator[Difference]:
    """Differences of each tensor or array in two results, however nested; other values are compared directly."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if set(theirs) != set(ours):
            yield _in_words(key, f"keys {sorted(map(str, theirs))} and {sorted(map(str, ours))}")
        for name in theirs:
            if name in ours:
                yield from differences_of(theirs[name], ours[name], _joined(key, name))
    elif isinstance(theirs, list | tuple) and isinstance(ours, list | tuple):
        if len(theirs) != len(ours):
            yield _in_words(key, f"{len(theirs)} and {len(ours)} samples")
        for number, (their_item, our_item) in enumerate(zip(theirs, ours, strict=False)):
            yield from differences_of(their_item, our_item, _joined(key, number))
    elif isinstance(theirs, torch.Tensor | np.ndarray):
        yield _of_arrays(theirs, ours, key)
    elif type(theirs) is not type(ours) or not _is_same(theirs, ours):
        yield _in_words(key, f"{theirs!r} and {ours!r}")


def _in_words(key: str, words: str) -> Difference:
    return Difference(key=key, largest=0.0, scale=0.0, share=0.0, is_whole=False, words=words)


def _joined(key: str, name: Hashable) -> str:
    return f"{key}.{name}" if key else str(name)


def _of_arrays(theirs: Any, ours: Any, key: str) -> Difference:
    words = []
    if type(theirs) is not type(ours):
        words.append(f"{type(theirs).__name__} and {type(ours).__name__}")
    one, other = _plain(theirs), _plain(ours)
    kinds = [
        str(getattr(value, "dtype", array.dtype)).removeprefix("torch.")
        for value, array in ((theirs, one), (ours, other))
    ]
    if kinds[0] != kinds[1]:
        words.append(f"{kinds[0]} and {kinds[1]}")
    if one.shape != other.shape:
        words.append(f"shapes {one.shape} and {other.shape}")
        return replace(_in_words(key, "; ".join(words)), largest=float("inf"), share=1.0)
    metadata = ""
    if isinstance(theirs, MetaTensor) and isinstance(ours, MetaTensor):
        words.extend(_of_affine(theirs, ours))
        metadata = "; ".join(_of_meta(theirs, ours))
    if one.size == 0:
        return replace(_in_words(key, "; ".join(words)), metadata=metadata)
    if one.dtype.kind not in "biuf" or other.dtype.kind not in "biuf":
        # Text and complex numbers, as in some metadata.
        if not _is_same(one, other):
            words.append(f"{one!r} and {other!r}")
        return replace(_in_words(key, "; ".join(words)), metadata=metadata)
    values = np.atleast_1d(one.astype(np.float64))
    with np.errstate(invalid="ignore"):
        gap = np.abs(values - other.astype(np.float64))
    gap[(one == other) | (np.isnan(one) & np.isnan(other) if one.dtype.kind == "f" else False)] = 0.0
    gap[np.isnan(gap)] = np.inf
    return Difference(
        key=key,
        largest=float(gap.max()),
        scale=float(np.abs(values[np.isfinite(values)]).max(initial=0.0)),
        share=float((gap > 0).mean()),
        is_whole=bool((one == np.round(one)).all()),
        words="; ".join(words),
        metadata=metadata,
    )


def _of_affine(theirs: MetaTensor, ours: MetaTensor) -> Iterator[str]:
    if theirs.affine.shape != ours.affine.shape or not np.allclose(
        theirs.affine, ours.affine, rtol=_META_RTOL, atol=1e-4
    ):
        yield f"affines {theirs.affine.tolist()} and {ours.affine.tolist()}"


def _of_meta(theirs: MetaTensor, ours: MetaTensor) -> Iterator[str]:
    one, other = ({name: value for name, value in image.meta.items() if name != "affine"} for image in (theirs, ours))
    if set(one) != set(other):
        yield f"metadata {sorted(map(str, one))} and {sorted(map(str, other))}"
    for name in one:
        if name in other and not _is_same(one[name], other[name], rtol=_META_RTOL):
            # In MONAI, the samples of one crop share the array, so all get the spacing of the last one.
            is_theirs_wrong = name == "pixdim" and _has_own_spacing(ours) and not _has_own_spacing(theirs)
            why = " (MONAI's differs from the spacing of its own affine; ours does not)" if is_theirs_wrong else ""
            yield f"metadata '{name}': {one[name]!r} and {other[name]!r}{why}"


def _has_own_spacing(image: MetaTensor) -> bool:
    """Whether `pixdim` holds the spacing of the affine."""
    spacing = affine_to_spacing(image.affine)
    return _is_same(_plain(image.meta["pixdim"])[1 : 1 + len(spacing)], _plain(spacing), rtol=_META_RTOL)


def _plain(value: Any) -> Any:
    if isinstance(value, MetaTensor):
        value = value.as_tensor()
    if isinstance(value, torch.Tensor):
        # NumPy lacks bfloat16.
        value = (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    return np.asarray(value)


def _is_same(one: Any, other: Any, *, rtol: float = 0.0) -> bool:
    """Whether two values are equal, recursively; NaN, as in many NIfTI headers, equals itself.

    Arrays of floats may differ by `rtol` of their values.
    """
    if isinstance(one, torch.Tensor | np.ndarray) or isinstance(other, torch.Tensor | np.ndarray):
        first, second = _plain(one), _plain(other)
        if first.shape != second.shape:
            return False
        if first.dtype.kind in "fc" and second.dtype.kind in "fc":
            return bool(np.allclose(first, second, rtol=rtol, atol=0.0, equal_nan=True))
        return bool(np.array_equal(first, second))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[name], other[name], rtol=rtol) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_is_same(*pair, rtol=rtol) for pair in zip(one, other, strict=True))
    return bool(one == other) or bool(one != one and other != other)
