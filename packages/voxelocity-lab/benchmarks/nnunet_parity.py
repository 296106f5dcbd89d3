"""nnU-Net's batches and ours, drawn by the same seeds: boxes, foreground, what each transform drew, intensities.

`nnunet_trainer.py` compares 500 patches of each data set; tests compare a few, and ranges that were changed on purpose.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.stats import ks_2samp

from voxelocity.core.volume import Array
from voxelocity.data.augment import AugmentParams
from voxelocity.nnunet.draws import DRAWN
from voxelocity.nnunet.feed import NnunetFeed

SMALLEST_P = 1e-3
"""Of what counts as distributed alike. Seeds are fixed: what passes once always passes."""
TOLERANCE = 2e-4
"""Of intensities, as a share of the largest, where both make the same change: rounding in float32."""
_OF_SHARE = 2e-3
"""Of the share of foreground: ties between classes on borders of patches that were turned."""
_DRAWN = ("affine", "sigmas", "multipliers", "scales", "gamma", "axes")
_NUM_NOISY = 1920
"""Voxels of a patch whose noise is compared."""
_APART = ("GaussianBlurTransform", "SimulateLowResolutionTransform")
"""Two ways to the same filter, and picked voxels: intensities are compared as distributions."""


@dataclass(kw_only=True)
class Side:
    """What one side made of the patches.

    Attributes:
        draws: boxes, and what each transform drew.
        contents: share of foreground, intensities before and after.
        is_exact: of each patch, whether intensities are compared number by number.
        is_still: whether nothing moved its labels.
        noise: voxels of noise over its deviation.
    """

    draws: list[dict[str, float]] = field(default_factory=list)
    contents: list[dict[str, float]] = field(default_factory=list)
    is_exact: list[bool] = field(default_factory=list)
    is_still: list[bool] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)


def transforms_of(loader: Any) -> list[Any]:
    """Those of a loader's chain, without what applies them at random."""
    return [getattr(step, "transform", step) for step in loader.transforms.transforms]


def seed_all(seed: int) -> None:
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def watched(loader: Any, side: Side) -> Iterator[None]:
    """Notes each box and each draw that a loader is asked for."""
    own_bbox = loader.get_bbox

    def get_bbox(shape: Array, *given: Any) -> Any:
        start, stop = own_bbox(shape, *given)
        middle = (np.array(start) + stop) / 2.0 / np.array(shape)
        side.draws.append({f"center {axis}": float(value) for axis, value in zip("xyz", middle, strict=True)})
        return start, stop

    def watch(number: int, transform: Any) -> None:
        own = transform.get_parameters

        def get_parameters(**sample: Any) -> Any:
            drawn = own(**sample)
            for key in (key for key in _DRAWN if drawn.get(key) is not None):
                numbers = _flat(drawn[key])
                if len(numbers) > 0:
                    name = f"{number} {type(transform).__name__} {key}"
                    side.draws[-1][name] = float(numbers.mean())
            return drawn

        transform.get_parameters = get_parameters

    transforms = transforms_of(loader)
    loader.get_bbox = get_bbox
    for number, transform in enumerate(transforms):
        watch(number, transform)
    try:
        yield
    finally:
        del loader.get_bbox
        for transform in transforms:
            del transform.get_parameters


def _flat(values: Any) -> Array:
    if isinstance(values, torch.Tensor):
        values = values.numpy()
    return np.asarray(values, dtype=np.float64).ravel()


@contextlib.contextmanager
def _noise_apart(loader: Any, side: Side) -> Iterator[None]:
    """nnU-Net's noise takes as many numbers of the generators as ours, so that what follows is drawn alike."""
    noisy = [step for step in transforms_of(loader) if type(step).__name__ == "GaussianNoiseTransform"]
    for transform in noisy:
        own = transform._apply_to_image

        def apply(image: torch.Tensor, own: Any = own, **drawn: Any) -> torch.Tensor:
            before, state = image.clone(), torch.get_rng_state()
            after: torch.Tensor = own(image, **drawn)
            torch.set_rng_state(state)
            np.random.randint(2**31)
            if drawn["sigmas"]:
                side.noise += ((after - before) / drawn["sigmas"]).flatten()[:_NUM_NOISY].tolist()
            return after

        transform._apply_to_image = apply
    try:
        yield
    finally:
        for transform in noisy:
            del transform._apply_to_image


def compare(loader: Any, feed_of: Callable[[Any], NnunetFeed], *, num_batches: int) -> dict[str, Any]:
    """Both sides of this many batches, of seeds from 0 on.

    Args:
        loader: nnU-Net's.
        feed_of: opens ours over it.
        num_batches: that are made.
    """
    theirs, ours, labels, own_objects = Side(), Side(), [], []
    with _noise_apart(loader, theirs), _inputs(loader, theirs):
        for seed in range(num_batches):
            seed_all(seed)
            with watched(loader, theirs):
                batch = loader.generate_train_batch()
            labels.append(_note(theirs, batch))
    # Objects that are watched draw themselves.
    with watched(loader, ours), feed_of(loader) as feed:
        for seed in range(num_batches):
            seed_all(seed)
            own_objects.append(feed._draw().params)
    num_other = 0
    with feed_of(loader) as feed:
        for seed in range(num_batches):
            seed_all(seed)
            drawn = feed._draw()
            num_other += not are_equal(own_objects[seed], drawn.params)
            batch = feed._make(drawn)
            _note_inputs(ours, feed, drawn)
            _note(ours, batch)
            labels[seed] = _label_differences(labels[seed], batch["target"])
            _note_noise(ours, feed, drawn)
    still = [share for batch, moves in zip(labels, _in_batches(ours.is_still, labels), strict=True)
             for share, is_still in zip(batch, moves, strict=True) if is_still]  # fmt: skip
    return verdict(theirs, ours) | {
        "num_batches_drawn_otherwise": num_other,
        "num_patches": len(ours.draws),
        "num_exact": sum(ours.is_exact),
        "num_noise_voxels": [len(theirs.noise), len(ours.noise)],
        "p_of_noise_a_tenth_stronger": p_of(theirs.noise, 1.1 * np.array(ours.noise)),
        "label_share_of_unmoved_patches": max(still, default=0.0),
        "label_share": float(np.mean([share for batch in labels for share in batch])),
    }


def are_equal(theirs: AugmentParams, ours: AugmentParams) -> bool:
    """Whether both change their samples alike, to the last bit of each number."""
    return all(np.array_equal(getattr(theirs, name), getattr(ours, name)) for name in DRAWN)


def draws_of(loader: Any, feed_of: Callable[[Any], NnunetFeed], *, num_batches: int) -> Side:
    """What our side alone draws: by nnU-Net's objects, which are watched, and as "our ..." by itself."""
    side = Side()
    with watched(loader, side), feed_of(loader) as feed:
        for seed in range(num_batches):
            seed_all(seed)
            feed._draw()
    with feed_of(loader) as feed:
        for seed in range(num_batches):
            seed_all(seed)
            params = feed._draw().params
            for number in range(params.num_samples):
                means = {f"our {name}": float(getattr(params, name)[number].mean()) for name in DRAWN}
                side.draws[seed * params.num_samples + number] |= means
    return side


def verdict(theirs: Side, ours: Side) -> dict[str, Any]:
    """What is equal, patch by patch, and for the rest the p of the two-sample test; those that differ."""
    equal: list[str] = []
    found: dict[str, float] = {}
    for name in _names(theirs.draws, ours.draws):
        one, other = _column(theirs.draws, name), _column(ours.draws, name)
        if np.array_equal(one, other, equal_nan=True):
            equal.append(name)
        else:
            # Equal seeds draw equal numbers.
            found[name] = 0.0
    for name in _names(theirs.contents, ours.contents):
        one, other = _column(theirs.contents, name), _column(ours.contents, name)
        apart = np.abs(one - other) / max(1.0, float(np.nanmax(np.abs(one))))
        tolerance = _OF_SHARE if name == "foreground share" else TOLERANCE
        if apart[np.array(ours.is_exact)].max(initial=0.0) > tolerance:
            found[name] = 0.0
        elif apart.max() <= tolerance:
            equal.append(name)
        else:
            found[name] = p_of(one, other)
    if theirs.noise or ours.noise:
        found["noise over its deviation"] = p_of(theirs.noise, ours.noise)
    return {"differing": [name for name, p in found.items() if p < SMALLEST_P], "equal": equal, "p": found}


def p_of(theirs: Array | Sequence[float], ours: Array | Sequence[float]) -> float:
    """Of the two-sample test of Kolmogorov and Smirnov."""
    return float(ks_2samp(theirs, ours, method="asymp").pvalue)


def _names(*sides: Sequence[Mapping[str, float]]) -> list[str]:
    return sorted({name for rows in sides for row in rows for name in row})


def _column(rows: Sequence[Mapping[str, float]], name: str) -> Array:
    """NaN where a transform was not applied."""
    return np.array([row.get(name, math.nan) for row in rows])


@contextlib.contextmanager
def _inputs(loader: Any, side: Side) -> Iterator[None]:
    """Notes what nnU-Net's chain gets."""
    own = loader.transforms

    class Noting:
        transforms = own.transforms

        def __call__(self, **sample: Any) -> Any:
            side.contents.append(_intensities("before", sample["image"]))
            return own(**sample)

    loader.transforms = Noting()
    try:
        yield
    finally:
        loader.transforms = own


def _note_inputs(side: Side, feed: NnunetFeed, drawn: Any) -> None:
    for case, box in zip(drawn.cases, drawn.boxes, strict=True):
        source = case.read(box, 0)
        whole = torch.zeros((source.image.shape[0], *box.shape))
        inside = tuple(slice(at, at + length) for at, length in zip(source.start, source.image.shape[1:], strict=True))
        whole[(slice(None), *inside)] = torch.from_numpy(np.ascontiguousarray(source.image))
        side.contents.append(_intensities("before", whole))


def _note(side: Side, batch: Mapping[str, Any]) -> list[Any]:
    """Notes what a batch holds; returns its targets."""
    targets = batch["target"] if isinstance(batch["target"], list) else [batch["target"]]
    num = len(batch["data"])
    for number, image in enumerate(batch["data"]):
        at = len(side.contents) - num + number
        drawn = side.draws[at]
        foreground = (targets[0][number] > 0).any(dim=0).float().mean()
        side.contents[at] |= {"foreground share": float(foreground), **_intensities("after", image)}
        side.is_still.append(not any("SpatialTransform" in name for name in drawn))
        apart = (*_APART, "GaussianNoiseTransform")
        side.is_exact.append(not any(kind in name for name in drawn for kind in apart))
    return targets


def _note_noise(side: Side, feed: NnunetFeed, drawn: Any) -> None:
    """The noise alone: of the batch without anything that comes after it."""
    params, deviations = drawn.params, drawn.params.noise_std.copy()
    if not deviations.any():
        return
    for name in ("contrast", "scale", "gamma", "gamma_inverted", "low_resolution"):
        getattr(params, name)[:] = 1.0
    params.blur_sigma_voxel[:] = 0.0
    noisy = feed._make(drawn)["data"]
    params.noise_std[:] = 0.0
    for change, deviation in zip(noisy - feed._make(drawn)["data"], deviations, strict=True):
        if deviation > 0.0:
            side.noise += (change / float(deviation)).flatten()[:_NUM_NOISY].tolist()


def _intensities(when: str, image: torch.Tensor) -> dict[str, float]:
    low, high = np.percentile(image.numpy(), (5.0, 95.0))
    return {
        f"mean {when}": float(image.mean()), f"deviation {when}": float(image.std()),
        f"5 % {when}": float(low), f"95 % {when}": float(high),
    }  # fmt: skip


def _label_differences(theirs: list[torch.Tensor], ours: Any) -> list[float]:
    """Of each patch the largest share of labels that differ, over the scales."""
    pairs = list(zip(theirs, ours if isinstance(ours, list) else [ours], strict=True))
    return [max(float((one[n] != other[n]).float().mean()) for one, other in pairs) for n in range(len(theirs[0]))]


def _in_batches(values: Sequence[bool], like: Sequence[Sequence[Any]]) -> Iterator[Sequence[bool]]:
    begin = 0
    for batch in like:
        yield values[begin : begin + len(batch)]
        begin += len(batch)


PLANTED: dict[str, str] = {
    "SpatialTransform rotation": "rotation",
    "SpatialTransform scaling": "scaling",
    "GaussianNoiseTransform": "noise_variance",
    "GaussianBlurTransform": "blur_sigma",
    "MultiplicativeBrightnessTransform": "multiplier_range",
    "ContrastTransform": "contrast_range",
    "SimulateLowResolutionTransform": "scale",
    "GammaTransform": "gamma",
}
"""Ranges that a transform draws from, by the class and, where it has two, their name."""


@contextlib.contextmanager
def planted(loader: Any, name: str) -> Iterator[None]:
    """The range is a tenth wider at both ends."""
    attribute = PLANTED[name]
    changed = [step for step in transforms_of(loader) if type(step).__name__ == name.partition(" ")[0]]
    before = [getattr(step, attribute) for step in changed]
    for step, value in zip(changed, before, strict=True):
        setattr(step, attribute, _wider(value))
    try:
        yield
    finally:
        for step, value in zip(changed, before, strict=True):
            setattr(step, attribute, value)


def _wider(value: Any) -> Any:
    if isinstance(value, tuple):
        # Of resolutions, 1 is the most.
        return tuple(min(1.0, part * 1.1) if value == (0.5, 1) else part * 1.1 for part in value)
    return type(value)(tuple(part * 1.1 for part in value.contrast_range))


def catches(loader: Any, feed_of: Callable[[Any], NnunetFeed], *, num_batches: int) -> dict[str, list[str]]:
    """For each planted change, the draws in which it shows."""
    plain, found = draws_of(loader, feed_of, num_batches=num_batches), defaultdict[str, list[str]](list)
    for name in PLANTED:
        with planted(loader, name):
            found[name] = verdict(plain, draws_of(loader, feed_of, num_batches=num_batches))["differing"]
    return dict(found)
