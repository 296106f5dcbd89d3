"""From stored voxels to an augmented batch: which engine computes it, and one loop over its samples."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Literal

import torch

from voxelocity.core.errors import ConfigError
from voxelocity.core.jit import has_numba
from voxelocity.core.region import Region
from voxelocity.data.augment.config import EngineName
from voxelocity.data.augment.params import AugmentParams
from voxelocity.data.augment.placement import Source

Engine = Literal["numba", "torch"]
_Sample = Callable[[Source, Region, AugmentParams, int, torch.Tensor, torch.Tensor], None]


def augment(
    sources: Sequence[Source],
    regions: Sequence[Region],
    params: AugmentParams,
    image: torch.Tensor,
    label: torch.Tensor,
    *,
    engine: EngineName = "auto",
) -> None:
    """Fills a batch. A sample comes out the same, bit for bit, whatever else is in the batch; engines agree closely.

    Safe to use from several threads; "numba" holds no GIL while it computes.

    Args:
        sources: one per sample, what it looks at by `needed_box`.
        regions: one per sample, where its patch lies in the volume.
        params: of b samples and c channels.
        image: (b, c, x, y, z) float32, written as a whole.
        label: (b, x, y, z) uint8, written as a whole.
        engine: as in `AugmentConfig`.

    Raises:
        ConfigError: the engine is not to be had here.
    """
    assert image.dtype == torch.float32, f"image {image.dtype}"
    assert label.dtype == torch.uint8, f"label {label.dtype}"
    assert image.shape[:2] == (params.num_samples, params.num_channels), f"image {tuple(image.shape)}"
    fill = _sample_with(chosen_engine(engine, image.device))
    for row, (source, region) in enumerate(zip(sources, regions, strict=True)):
        fill(source, region, params, row, image[row], label[row])


def chosen_engine(engine: EngineName, device: torch.device) -> Engine:
    """The engine that this name means for batches on this device.

    Raises:
        ConfigError: it is not to be had here.
    """
    if engine == "torch" or (engine == "auto" and device.type != "cpu"):
        return "torch"
    if device.type != "cpu":
        raise ConfigError(f"augment: engine 'numba' cannot fill a batch on {device}; choose engine: auto")
    if has_numba():
        return "numba"
    if engine == "numba":
        raise ConfigError("augment: engine 'numba' needs the package numba; install it, or choose engine: torch")
    _warn_of_missing_numba()
    return "torch"


@functools.cache
def _warn_of_missing_numba() -> None:
    warnings.warn(
        "augment: numba is not installed, so patches are augmented in plain torch, about ten times slower; install "
        "numba, or choose engine: torch to accept that",
        stacklevel=3,
    )


def _sample_with(engine: Engine) -> _Sample:
    if engine == "torch":
        from voxelocity.data.augment.torch_engine import augment_sample

        return augment_sample
    return _numba_sample


def _numba_sample(
    source: Source, region: Region, params: AugmentParams, row: int, image: torch.Tensor, label: torch.Tensor
) -> None:
    # Compiled loops are loaded when they are first used: a command that needs none need not wait for them.
    from voxelocity.data.augment.numba_engine import augment_sample

    augment_sample(source, region, params, row, image.numpy(), label.numpy())
