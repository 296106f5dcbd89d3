"""Scripts as people write them for MONAI, under either package's names: what `voxelocity.monai` promises to speed up.

The chains are those of `examples/monai`, unchanged.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import monai.transforms as mt
import torch

from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
from voxelocity.monai.difference import differences_of
from voxelocity_lab.bench.streams import OpenStream, endless
from voxelocity_observe.core.errors import VoxelocityError

Names = Literal["monai.data", "voxelocity.monai"]
"""The module that a script imports its data sets and loaders from."""
ChainName = Literal["spleen", "spleen without RandAffined", "brats"]
KEYS = ("image", "label")
PATCHES_PER_IMAGE = 4
_CURE = "speeds of different work cannot be compared. See which transform it is: voxelocity.monai.check(chain, item)"
LARGEST_DIFFERENCE = 1e-3
"""Of two voxels of an image, as a share of the largest value."""
LARGEST_SHARE = 1e-4
"""Of the voxels of a label: where the nearest voxel is a matter of rounding."""


class TumourRegionsd(mt.MapTransform):  # type: ignore[misc]
    """A label (1, x, y, z) of BraTS's classes becomes (3, x, y, z): core, whole and enhancing tumour."""

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        changed = dict(data)
        for key in self.key_iterator(changed):
            label = changed[key]
            core = (label == 2) | (label == 3)
            changed[key] = torch.cat([core, core | (label == 1), label == 3]).float()
        return changed


def names(module: Names) -> Any:
    """The module: `CacheDataset`, `ThreadDataLoader` and so on are its attributes."""
    if module == "monai.data":
        import monai.data

        return monai.data
    import voxelocity.monai

    return voxelocity.monai


def items(refs: Sequence[VolumeRef]) -> list[dict[str, Any]]:
    """File names by key; those of several channels as a list."""
    return [
        {"image": str(ref.images[0]) if len(ref.images) == 1 else list(map(str, ref.images)), "label": str(ref.label)}
        for ref in refs
    ]


def preparing(chain: ChainName) -> list[Any]:
    """The deterministic part of a chain; transforms of its own at each call."""
    head = [mt.LoadImaged(keys=KEYS), mt.EnsureChannelFirstd(keys=KEYS)]
    orient = mt.Orientationd(keys=KEYS, axcodes="RAS", labels=None)
    if chain == "brats":
        spacing = mt.Spacingd(keys=KEYS, pixdim=(1.0, 1.0, 1.0), mode=("bilinear", "nearest"))
        return [*head, TumourRegionsd(keys="label"), orient, spacing, mt.EnsureTyped(keys=KEYS, track_meta=False)]
    return [
        *head,
        orient,
        mt.Spacingd(keys=KEYS, pixdim=(1.5, 1.5, 2.0), mode=("bilinear", "nearest")),
        mt.ScaleIntensityRanged(keys="image", a_min=-57, a_max=164, b_min=0.0, b_max=1.0, clip=True),
        mt.CropForegroundd(keys=KEYS, source_key="image", allow_smaller=True),
        mt.FgBgToIndicesd(keys="label", fg_postfix="_fg", bg_postfix="_bg", image_key="image"),
        mt.EnsureTyped(keys=KEYS, track_meta=False),
    ]


def augmenting(chain: ChainName, patch: Index3) -> list[Any]:
    """The random part of a chain; transforms of its own at each call."""
    flips = [mt.RandFlipd(keys=KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)]
    if chain == "brats":
        return [
            mt.RandSpatialCropd(keys=KEYS, roi_size=patch, random_size=False),
            *flips,
            mt.NormalizeIntensityd(keys="image", nonzero=True, channel_wise=True),
            mt.RandScaleIntensityd(keys="image", factors=0.1, prob=1.0),
            mt.RandShiftIntensityd(keys="image", offsets=0.1, prob=1.0),
        ]
    crop = mt.RandCropByPosNegLabeld(
        keys=KEYS,
        label_key="label",
        spatial_size=patch,
        pos=1,
        neg=1,
        num_samples=PATCHES_PER_IMAGE,
        fg_indices_key="label_fg",
        bg_indices_key="label_bg",
        allow_smaller=False,
    )
    affine = mt.RandAffined(
        keys=KEYS,
        prob=1.0,
        spatial_size=patch,
        rotate_range=(0.26, 0.26, 0.26),
        scale_range=(0.1, 0.1, 0.1),
        mode=("bilinear", "nearest"),
        padding_mode="zeros",
    )
    return [
        crop,
        *([affine] if chain == "spleen" else []),
        *flips,
        mt.RandScaleIntensityd(keys="image", factors=0.1, prob=0.5),
        mt.RandShiftIntensityd(keys="image", offsets=0.1, prob=0.5),
    ]


def whole(chain: ChainName, patch: Index3) -> list[Any]:
    """The transforms of a whole chain."""
    return [*preparing(chain), *augmenting(chain, patch)]


def make_cached(module: Names, refs: Sequence[VolumeRef], chain: Sequence[Any]) -> Any:
    """A CacheDataset of every case, filled, with its default settings."""
    return names(module).CacheDataset(items(refs), mt.Compose(chain), progress=False)


def make_persistent(module: Names, refs: Sequence[VolumeRef], chain: Sequence[Any], folder: Path) -> Any:
    """A PersistentDataset in this folder, each of its cases made."""
    return _take_every_item(names(module).PersistentDataset(items(refs), mt.Compose(chain), cache_dir=folder))


def make_compiled(module: Names, refs: Sequence[VolumeRef], chain: Sequence[Any]) -> Any:
    """A Dataset of the compiled chain, each of its cases in the chain's memory cache."""
    fast = names("voxelocity.monai").compile(mt.Compose(chain), cache="memory")
    return _take_every_item(names(module).Dataset(items(refs), fast))


def _take_every_item(dataset: Any) -> Any:
    for index in range(len(dataset)):
        dataset[index]
    return dataset


def stream(
    module: Names, loader: Literal["DataLoader", "ThreadDataLoader"], dataset: Any, *, batch_size: int, num_workers: int
) -> OpenStream:
    """Batches in one pass that does not end while it is measured, the same ones each time it is opened."""
    return endless(getattr(names(module), loader), dataset, seed=0, batch_size=batch_size, num_workers=num_workers)


def check_same(ours: OpenStream, theirs: OpenStream, what: str) -> str:
    """How the first batches drawn from one seed differ, in words.

    Raises:
        VoxelocityError: they differ by more than `LARGEST_DIFFERENCE` or `LARGEST_SHARE`, so that a comparison of their
            speeds would mean nothing.
    """
    batches = []
    for open_stream in (ours, theirs):
        with open_stream() as opened:
            batches.append(next(opened))
    return check_batches(batches[0], batches[1], what)


def check_batches(ours: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> str:
    """Like `check_same`, for batches already at hand."""
    for key in KEYS:
        if ours[key].shape != theirs[key].shape:
            raise VoxelocityError(
                f"bench monai: {what}: the batches' {key} has shape {tuple(ours[key].shape)} by voxelocity.monai and "
                f"{tuple(theirs[key].shape)} by MONAI; {_CURE}"
            )
    image, label = differences_of([theirs[key] for key in KEYS], [ours[key] for key in KEYS])
    words = (
        f"largest difference of an image {image.relative:.1e} of its largest value, labels {label.share:.1e} of voxels"
    )
    if image.relative > LARGEST_DIFFERENCE or label.share > LARGEST_SHARE:
        raise VoxelocityError(f"bench monai: {what}: the batches of one seed differ ({words}); {_CURE}")
    return words
