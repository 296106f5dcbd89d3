"""MONAI's side: its own transforms, data sets and loaders, with the settings its documentation gives for speed.

Metadata tracking is off, cached items are not copied (`copy_cache=False`), progress bars are off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import (
    CacheDataset,
    DataLoader,
    Dataset,
    LMDBDataset,
    PersistentDataset,
    SmartCacheDataset,
    ThreadDataLoader,
    list_data_collate,
)
from monai.transforms import (
    CastToTyped,
    CropForegroundd,
    EnsureChannelFirstd,
    FgBgToIndicesd,
    LoadImaged,
    NormalizeIntensityd,
    Orientationd,
    RandAffined,
    RandFlipd,
    RandGaussianNoised,
    RandScaleIntensityd,
    RandShiftIntensityd,
    RandSpatialCropd,
    ScaleIntensityRanged,
    SelectItemsd,
    Spacingd,
    ToTensord,
)

from voxelocity.bench.ours import CT_WINDOW_HU
from voxelocity.bench.peers.monai_scripts import KEYS, items
from voxelocity.bench.phantom import Kind
from voxelocity.bench.streams import OpenStream, Work, endless
from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef

# Plain tensors and nothing else: no affine, no list of transforms.
_BARE = (ToTensord(keys=KEYS, track_meta=False), SelectItemsd(keys=KEYS))
_SMALL_LABEL = CastToTyped(keys="label", dtype=torch.uint8)
_MAP_BYTES = 2**36


def preparing(kind: Kind, *, spacing_mm: Sequence[float] | None = None, crop: bool = False) -> list[Any]:
    """The deterministic chain of MONAI's spleen and BraTS tutorials: load, orient, resample, intensity, crop.

    Resampled in float32 and labels kept in uint8, which MONAI leaves to the user: half the time, and less to move.
    """
    low, high = CT_WINDOW_HU
    chain: list[Any] = [
        LoadImaged(keys=KEYS),
        EnsureChannelFirstd(keys=KEYS),
        Orientationd(keys=KEYS, axcodes="RAS", labels=None),
    ]
    if spacing_mm is not None:
        chain.append(Spacingd(keys=KEYS, pixdim=tuple(spacing_mm), mode=("bilinear", "nearest"), dtype=torch.float32))
    if kind == "ct":
        chain.append(ScaleIntensityRanged(keys="image", a_min=low, a_max=high, b_min=0.0, b_max=1.0, clip=True))
    else:
        chain.append(NormalizeIntensityd(keys="image", nonzero=True, channel_wise=True))
    if crop:
        chain.append(CropForegroundd(keys=KEYS, source_key="image", allow_smaller=True))
    return [*chain, *_BARE, _SMALL_LABEL]


def preparing_small(kind: Kind, dtype: str) -> list[Any]:
    """The same, or for "int16" with images as stored."""
    if dtype == "int16":
        return [
            LoadImaged(keys=KEYS, dtype=np.int16),
            EnsureChannelFirstd(keys=KEYS),
            Orientationd(keys=KEYS, axcodes="RAS", labels=None),
            *_BARE,
            _SMALL_LABEL,
        ]
    return preparing(kind)


def persistent(refs: Sequence[VolumeRef], chain: Sequence[Any], folder: Path) -> Any:
    """A PersistentDataset of tensors without metadata in this folder."""
    return PersistentDataset(items(refs), list(chain), cache_dir=folder, track_meta=False, weights_only=True)


def lmdb(refs: Sequence[VolumeRef], chain: Sequence[Any], folder: Path) -> Any:
    """An LMDBDataset in this folder."""
    return LMDBDataset(items(refs), list(chain), folder, progress=False, lmdb_kwargs={"map_size": _MAP_BYTES})


def uncached(refs: Sequence[VolumeRef], chain: Sequence[Any]) -> Any:
    """A Dataset that does everything again each time."""
    return Dataset(items(refs), list(chain))


def smart_cached(refs: Sequence[VolumeRef], chain: Sequence[Any], *, cache_num: int, replace_rate: float) -> Any:
    """A SmartCacheDataset, filled and not started."""
    options: dict[str, Any] = {"num_init_workers": None, "progress": False, "shuffle": False, "copy_cache": False}
    return SmartCacheDataset(items(refs), list(chain), replace_rate=replace_rate, cache_num=cache_num, **options)


def cached(
    refs: Sequence[VolumeRef],
    kind: Kind,
    random: Sequence[Any],
    *,
    num_workers: int = 1,
    runtime_cache: bool | str = False,
    **options: Any,
) -> Any:
    """A CacheDataset of every case, prepared now or when it is first used, that applies `random` to it."""
    chain = [*preparing(kind, **options), *random]
    settings: dict[str, Any] = {"cache_rate": 1.0, "progress": False, "copy_cache": False}
    return CacheDataset(items(refs), chain, num_workers=num_workers, runtime_cache=runtime_cache, **settings)


def cached_bytes(refs: Sequence[VolumeRef], kind: Kind, *, indices: bool) -> int:
    """Bytes of all tensors and arrays that a CacheDataset keeps of these cases.

    With `indices` it keeps the voxels on which `RandCropByPosNegLabeld` centers patches, as MONAI's fast training
    guide advises.
    """
    dataset = cached(refs, kind, [FgBgToIndicesd(keys="label", image_key="image")] if indices else [])
    return sum(int(value.nbytes) for item in dataset for value in item.values() if hasattr(value, "nbytes"))


def cropping(patch: Index3) -> list[Any]:
    """A box of every item, anywhere in it."""
    return [RandSpatialCropd(keys=KEYS, roi_size=patch, random_size=False)]


def augmenting(patch: Index3) -> list[Any]:
    """The chain that `ours.AS_MONAI` equals: each step applied to every patch, flips to half of them."""
    angle = math.radians(15.0)
    return [
        *cropping(patch),
        RandAffined(
            keys=KEYS,
            prob=1.0,
            spatial_size=patch,
            rotate_range=(angle, angle, angle),
            scale_range=(0.1, 0.1, 0.1),
            mode=("bilinear", "nearest"),
            padding_mode="zeros",
            # The sampling grid is the same for every patch; kept, it is not made again.
            cache_grid=True,
        ),
        *(RandFlipd(keys=KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)),
        RandScaleIntensityd(keys="image", factors=0.1, prob=1.0),
        RandShiftIntensityd(keys="image", offsets=0.1, prob=1.0),
        RandGaussianNoised(keys="image", prob=1.0, mean=0.0, std=0.1),
    ]


def streams(work: Work, chain: str) -> dict[str, OpenStream]:
    """Batches of a CacheDataset, cut and for "affine" augmented, by the settings of its loader."""
    random = augmenting(work.patch) if chain == "affine" else cropping(work.patch)
    return loaders(cached(work.refs, work.phantoms.kind, random), work)


def loaders(dataset: Any, work: Work) -> dict[str, OpenStream]:
    """Streams of the data set's batches by the settings of their loader.

    `use_thread_workers` is not among them: MONAI's random transforms keep a sample's numbers in themselves, so that
    two threads cut image and label in different places.
    """
    found = {
        f"DataLoader(num_workers={number})": endless(
            DataLoader, dataset, batch_size=work.batch_size, num_workers=number
        )
        for number in work.workers
    }
    # One thread besides the consumer's.
    options = {"batch_size": work.batch_size, "num_workers": 0, "buffer_size": 2}
    return {**found, "ThreadDataLoader(num_workers=0)": endless(ThreadDataLoader, dataset, **options)}


def batch_of_one(item: Any) -> Any:
    """What a loader makes of one item of a data set."""
    return list_data_collate([item])
