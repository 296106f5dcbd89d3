"""MONAI's side: its own transforms, data sets and loaders, with the settings its documentation gives for speed.

Metadata tracking is off, cached items are not copied (`copy_cache=False`), progress bars are off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import monai.data
import monai.transforms as mt
import numpy as np
import torch

from voxelocity.core.region import Index3
from voxelocity.core.volume import VolumeRef
from voxelocity_lab.bench.peers.monai_scripts import KEYS, items
from voxelocity_lab.bench.phantom import Kind
from voxelocity_lab.bench.streams import CT_WINDOW_HU, OpenStream, Work, endless

# Plain tensors and nothing else: no affine, no list of transforms.
_BARE = (mt.ToTensord(keys=KEYS, track_meta=False), mt.SelectItemsd(keys=KEYS))
_SMALL_LABEL = mt.CastToTyped(keys="label", dtype=torch.uint8)
_UNCOPIED = {"progress": False, "copy_cache": False}
_SETTINGS: dict[str, dict[str, Any]] = {
    "Dataset": {},
    "CacheDataset": {"cache_rate": 1.0, "num_workers": 1, **_UNCOPIED},
    # Filled and not started.
    "SmartCacheDataset": {"num_init_workers": None, "shuffle": False, **_UNCOPIED},
    "PersistentDataset": {"track_meta": False, "weights_only": True},
    "LMDBDataset": {"progress": False, "lmdb_kwargs": {"map_size": 2**36}},
}
"""Of each of MONAI's data sets."""


def preparing(kind: Kind, *, spacing_mm: Sequence[float] | None = None, crop: bool = False) -> list[Any]:
    """The deterministic chain of MONAI's spleen and BraTS tutorials: load, orient, resample, intensity, crop.

    Resampled in float32 and labels kept in uint8, which MONAI leaves to the user: half the time, and less to move.
    """
    low, high = CT_WINDOW_HU
    chain: list[Any] = [
        mt.LoadImaged(keys=KEYS),
        mt.EnsureChannelFirstd(keys=KEYS),
        mt.Orientationd(keys=KEYS, axcodes="RAS", labels=None),
    ]
    if spacing_mm is not None:
        chain.append(
            mt.Spacingd(keys=KEYS, pixdim=tuple(spacing_mm), mode=("bilinear", "nearest"), dtype=torch.float32)
        )
    if kind == "ct":
        chain.append(mt.ScaleIntensityRanged(keys="image", a_min=low, a_max=high, b_min=0.0, b_max=1.0, clip=True))
    else:
        chain.append(mt.NormalizeIntensityd(keys="image", nonzero=True, channel_wise=True))
    if crop:
        chain.append(mt.CropForegroundd(keys=KEYS, source_key="image", allow_smaller=True))
    return [*chain, *_BARE, _SMALL_LABEL]


def preparing_small(kind: Kind, dtype: str) -> list[Any]:
    """The same, or for "int16" with images as stored."""
    if dtype == "int16":
        return [
            mt.LoadImaged(keys=KEYS, dtype=np.int16),
            mt.EnsureChannelFirstd(keys=KEYS),
            mt.Orientationd(keys=KEYS, axcodes="RAS", labels=None),
            *_BARE,
            _SMALL_LABEL,
        ]
    return preparing(kind)


def dataset(name: str, refs: Sequence[VolumeRef], chain: Sequence[Any], **options: Any) -> Any:
    """MONAI's data set of this name, of every case."""
    return getattr(monai.data, name)(items(refs), list(chain), **{**_SETTINGS[name], **options})


def make_cached(refs: Sequence[VolumeRef], kind: Kind, random: Sequence[Any], **options: Any) -> Any:
    """A CacheDataset of prepared cases, filled now or when it is first used, that applies `random` to them."""
    return dataset("CacheDataset", refs, [*preparing(kind), *random], **options)


def cached_bytes(refs: Sequence[VolumeRef], kind: Kind, *, indices: bool) -> int:
    """Bytes of all tensors and arrays that a CacheDataset keeps of these cases.

    With `indices` it keeps the voxels on which `RandCropByPosNegLabeld` centers patches, as MONAI's fast training
    guide advises.
    """
    kept = make_cached(refs, kind, [mt.FgBgToIndicesd(keys="label", image_key="image")] if indices else [])
    return sum(int(value.nbytes) for item in kept for value in item.values() if hasattr(value, "nbytes"))


def cropping(patch: Index3) -> list[Any]:
    """A box of every item, anywhere in it."""
    return [mt.RandSpatialCropd(keys=KEYS, roi_size=patch, random_size=False)]


def augmenting(patch: Index3) -> list[Any]:
    """The chain that `streams.AS_MONAI` equals: each step applied to every patch, flips to half of them."""
    angle = math.radians(15.0)
    return [
        *cropping(patch),
        mt.RandAffined(
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
        *(mt.RandFlipd(keys=KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)),
        mt.RandScaleIntensityd(keys="image", factors=0.1, prob=1.0),
        mt.RandShiftIntensityd(keys="image", offsets=0.1, prob=1.0),
        mt.RandGaussianNoised(keys="image", prob=1.0, mean=0.0, std=0.1),
    ]


def streams(work: Work, chain: str) -> dict[str, OpenStream]:
    """Batches of a CacheDataset, cut and for "affine" augmented, by the settings of its loader."""
    random = augmenting(work.patch) if chain == "affine" else cropping(work.patch)
    # As the guide on fast training has it: items are cached on the device, and random transforms follow them there.
    there = [] if work.device == "cpu" else [mt.ToDeviced(keys=KEYS, device=work.device)]
    return loaders(make_cached(work.refs, work.phantoms.kind, [*there, *random]), work)


def loaders(dataset: Any, work: Work) -> dict[str, OpenStream]:
    """Streams of the data set's batches by the settings of their loader.

    `use_thread_workers` is not among them: MONAI's random transforms keep a sample's numbers in themselves, so that
    two threads cut image and label in different places.
    """
    found = {
        f"DataLoader(num_workers={number})": endless(
            monai.data.DataLoader, dataset, batch_size=work.batch_size, num_workers=number
        )
        for number in work.workers
    }
    # One thread besides the consumer's.
    options = {"batch_size": work.batch_size, "num_workers": 0, "buffer_size": 2}
    return {**found, "ThreadDataLoader(num_workers=0)": endless(monai.data.ThreadDataLoader, dataset, **options)}


def batch_of_one(item: Any) -> Any:
    """What a loader makes of one item of a data set."""
    return monai.data.list_data_collate([item])
