"""E17: MONAI's guide on fast training with its items cached on the device: MONAI's own transforms there against ours.

Four patches of 96 cubed a batch, from `CacheDataset(copy_cache=False)` and `ThreadDataLoader`, for a consumer that does
nothing else. The two sides alternate, and their first batches from one seed are compared.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Generator
from typing import Any

import numpy as np
import torch

from gpu.experiment import Experiment, Row, Setting

SHAPE, SIDE, NUM_PATCHES = (256, 224, 128), 96, 4
KEYS = ("image", "label")
CHAINS = ("guide", "guide and moves", "guide and affine", "guide and intensities")


def run(setting: Setting) -> None:
    """Each chain: equality, then rounds of both sides."""
    for name in CHAINS:
        with setting.guard("monai on a device", what=name):
            _compare(setting, name)


def _compare(setting: Setting, name: str) -> None:
    sides = {side: _loader(setting, name, is_ours=side == "ours") for side in ("monai", "ours")}
    first = {side: next(iter(loader)) for side, loader in sides.items()}
    setting.report("equality", {"what": name, **_gaps(first["monai"], first["ours"])})
    num_batches = 2 if setting.is_tiny else 36
    rates: dict[str, list[float]] = {side: [] for side in sides}
    hosts: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(1 if setting.is_tiny else 5):
        for side, loader in sides.items():
            endless = _endless(loader)
            next(endless)
            setting.synchronize()
            begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
            for _ in range(num_batches):
                next(endless)
            setting.synchronize()
            spent_s = time.perf_counter() - begin_s
            hosts[side].append((time.process_time() - begin_cpu_s) / num_batches * 1e3)
            rates[side].append(num_batches * NUM_PATCHES / spent_s)
            endless.close()
    for side, found in rates.items():
        setting.report(
            "monai on a device",
            {
                "what": name,
                "side": side,
                "patches_per_s": statistics.median(found),
                "low_patches_per_s": min(found),
                "high_patches_per_s": max(found),
                "n": len(found),
                "cpu_ms_per_batch": statistics.median(hosts[side]),
            },
        )
    ratios = [ours / theirs for ours, theirs in zip(rates["ours"], rates["monai"], strict=True)]
    setting.report("ratios", {"what": name, "ours_to_monai": statistics.median(ratios), "n": len(ratios)})
    notes = sides["ours"].dataset.plan().notes
    setting.report("waits", {"what": name, "notes": " ".join(notes)[:400], "waits": _waits(setting, sides["ours"])})


def _waits(setting: Setting, loader: Any) -> str:
    """Whether a batch of ours waits for the device anywhere: torch raises an error where it would."""
    if setting.device.type != "cuda":
        return "not on a device"
    torch.cuda.set_sync_debug_mode("error")
    try:
        list(loader)
    except Exception as error:
        return repr(error.__cause__ or error)[:300]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "nowhere"


def _endless(loader: Any) -> Generator[Any, None, None]:
    while True:
        yield from loader


def _gaps(theirs: Any, ours: Any) -> Row:
    label = theirs["label"].as_tensor() != ours["label"].as_tensor()
    image = theirs["image"].as_tensor(), ours["image"].as_tensor()
    gap = (image[0] - image[1]).abs().max() / image[0].abs().max().clamp(min=1e-30)
    return {
        "label_voxels_that_differ": int(label.sum()),
        "largest_difference": float(gap),
        "device": str(image[1].device),
    }


def _loader(setting: Setting, name: str, *, is_ours: bool) -> Any:
    import monai.data
    from monai.transforms import Compose

    import voxelocity.monai

    source: Any = voxelocity.monai if is_ours else monai.data
    size = 8 if setting.is_tiny else SIDE
    device = "cuda:0" if setting.device.type == "cuda" else "cpu"
    chain = Compose(_chain(name, device, size)).set_random_state(11)
    shape = (16, 15, 14) if setting.is_tiny else SHAPE
    num_items = 2 if setting.is_tiny else 6
    dataset = source.CacheDataset(
        [_item(seed, shape) for seed in range(num_items)], chain, progress=False, copy_cache=False
    )
    torch.manual_seed(0)
    return source.ThreadDataLoader(dataset, batch_size=1, num_workers=0, shuffle=False)


def _chain(name: str, device: str, size: int) -> list[Any]:
    import monai.transforms as mt

    guide = [
        mt.ScaleIntensityRanged("image", 0.0, 100.0, 0.0, 1.0, clip=True),
        mt.EnsureTyped(KEYS),
        mt.ToDeviced(KEYS, device=device),
        mt.RandCropByPosNegLabeld(
            KEYS, "label", (size,) * 3, 1, 1, NUM_PATCHES, image_key="image", image_threshold=0.0
        ),
    ]
    moves = [*(mt.RandFlipd(KEYS, 0.5, axis) for axis in range(3)), mt.RandRotate90d(KEYS, 0.5, 3)]
    affine = mt.RandAffined(KEYS, prob=1.0, rotate_range=(0.3, 0.3, 0.3), scale_range=0.1, mode=("bilinear", "nearest"))
    intensities = [
        mt.RandScaleIntensityd("image", 0.1, prob=1.0),
        mt.RandShiftIntensityd("image", 0.1, prob=1.0),
        mt.RandAdjustContrastd("image", 1.0),
        mt.RandGaussianSmoothd("image", prob=1.0),
    ]
    more: dict[str, list[Any]] = {
        "guide": [],
        "guide and moves": moves,
        "guide and affine": [*moves, affine],
        "guide and intensities": [*moves, *intensities],
    }
    return [*guide, *more[name]]


@functools.cache
def _item(seed: int, shape: tuple[int, ...]) -> dict[str, Any]:
    """A scan like a CT's, with a body and an organ in it."""
    rng = np.random.default_rng(seed)
    places = np.meshgrid(*(np.linspace(-1, 1, side, dtype=np.float32) for side in shape), indexing="ij")
    far = np.sqrt(sum(place**2 for place in places))
    image = np.where(far < 0.9, 50 + 20 * rng.standard_normal(shape, dtype=np.float32), 0.0).astype(np.float32)
    label = (np.abs(far - 0.4) < 0.1).astype(np.uint8)
    return {"image": torch.from_numpy(image[None]), "label": torch.from_numpy(label[None])}


EXPERIMENT = Experiment(
    id="E17",
    question="How much faster are MONAI's random transforms of tensors cached on the device, and are they equal?",
    seconds=70,
    run=run,
)
