"""What the parity table shows: transforms with arguments, and items to try them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from monai.data.meta_tensor import MetaTensor
from monai.transforms import Transform
from monai.utils import ensure_tuple

Item = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ParityCase:
    """One set of arguments of a dictionary transform, compared with its lowering.

    Attributes:
        transform: MONAI's class.
        arguments: of its constructor.
        item: makes an item from a seed.
        tolerance: largest allowed difference of two values, relative to the largest absolute value of MONAI's; 0
            for equal values. Labels are always equal.
        label_keys: tensors that hold classes, whose voxels are counted where they differ; () where none is changed.
        is_seeded: the engine draws its own noise: changes are compared in distribution, not voxel by voxel.
    """

    transform: type
    arguments: Mapping[str, Any]
    item: Callable[[int], Item]
    tolerance: float = 0.0
    label_keys: tuple[str, ...] = ("label",)
    is_seeded: bool = False

    def made(self, seed: int) -> Any:
        """The transform, with its random state where it has one."""
        transform = self.transform(**self.arguments)
        return transform.set_random_state(seed=seed) if hasattr(transform, "set_random_state") else transform

    @property
    def keys(self) -> tuple[str, ...]:
        """Those that the transform changes."""
        return tuple(ensure_tuple(self.arguments["keys"]))

    @property
    def words(self) -> str:
        """The arguments except the keys, as they would be written in a script."""
        return ", ".join(f"{name}={_written(value)}" for name, value in self.arguments.items() if name != "keys")


def _written(value: Any) -> str:
    return f"{type(value).__name__}(...)" if isinstance(value, Transform) else repr(value)


def cases_of(
    transform: type,
    *tried: tuple[Callable[[int], Item], Mapping[str, Any]],
    keys: str | tuple[str, ...] = ("image", "label"),
    tolerance: float = 0.0,
) -> list[ParityCase]:
    """Cases of one class, each of items and arguments; labels are counted where they are among the keys."""
    label_keys = ("label",) if "label" in ensure_tuple(keys) else ()
    return [
        ParityCase(
            transform=transform,
            arguments={"keys": keys, **arguments},
            item=item,
            tolerance=tolerance,
            label_keys=label_keys,
        )
        for item, arguments in tried
    ]


def scaled(side: int, *voxels: int) -> tuple[int, ...]:
    """Numbers of voxels that suit a patch of 96 a side, for one of `side`."""
    return tuple(side * number // 96 for number in voxels)


def item_of(
    seed: int,
    *,
    shape: Sequence[int] = (96, 96, 96),
    num_channels: int = 1,
    dtype: npt.DTypeLike = np.float32,
    label_dtype: npt.DTypeLike = np.uint8,
    num_classes: int = 3,
    empty_share: float = 0.0,
    kind: str = "meta",
) -> Item:
    """An item with an "image" (num_channels, *shape), a "label" (1, *shape) of classes and the name of its "case".

    Args:
        seed: of its voxels, its affine and its metadata.
        shape: of its two or three spatial axes.
        num_channels: of the image.
        dtype: of the image; integers and floats are spread over 0 to 100.
        label_dtype: of the label.
        num_classes: of the label, the background being one.
        empty_share: how many of the image's voxels are 0, as a background is.
        kind: "meta" for tensors with affine and metadata, "tensor" for plain ones, "array" for arrays.
    """
    rng = np.random.default_rng(seed)
    image = (rng.random((num_channels, *shape)) * 100).astype(dtype)
    label = rng.integers(0, num_classes, (1, *shape)).astype(label_dtype)
    if empty_share:
        image[rng.random(image.shape) < empty_share] = 0
    if kind == "array":
        return {"image": image, "label": label, "case": f"case-{seed}"}
    tensors = {"image": torch.from_numpy(image), "label": torch.from_numpy(label)}
    if kind == "meta":
        affine = torch.eye(4, dtype=torch.float64)
        affine[:3] = torch.from_numpy(rng.normal(size=(3, 4)))
        for key, value in tensors.items():
            meta = {"filename_or_obj": f"{key}-{seed}.nii.gz", "pixdim": np.ones(8, np.float32)}
            tensors[key] = MetaTensor(value, affine=affine.clone(), meta=meta)
    return {**tensors, "case": f"case-{seed}"}
