"""The changes of a batch: first their parameters are drawn, then an engine applies them to stored voxels."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch

from voxelocity.core.batch import Draw
from voxelocity.core.kernels import has_triton
from voxelocity.core.native import has_loops, why_not
from voxelocity.core.region import Index3, Region
from voxelocity.core.rng import Layout, Numbers
from voxelocity.core.volume import Spacing
from voxelocity.data.augment.built_in import EFFECTS, FIRST_STREAM, BuiltInEffect, Drawn, Patches
from voxelocity.data.augment.config import AugmentConfig, EngineName
from voxelocity.data.augment.params import AugmentParams, ResidentSource, Source, swap_table
from voxelocity_observe.core.errors import ConfigError

Engine = Literal["native", "triton", "torch"]


def sample(
    draws: Sequence[Draw],
    *,
    seed: int,
    num_channels: int,
    patch_shape: Index3,
    config: AugmentConfig,
    spacing_mm: Spacing | Sequence[Spacing] | None = None,
    swapped_classes: Sequence[int] = (),
) -> AugmentParams:
    """Parameters for these draws. Those of one draw depend only on (seed, epoch, case, draw) and the arguments.

    Args:
        draws: one per sample of the batch.
        seed: of the run.
        num_channels: c.
        patch_shape: (x, y, z) of the patches, which an elastic deformation spans.
        config: how often and how strong; if it is not enabled, the result changes nothing.
        spacing_mm: along (x, y, z), of all patches or of each draw. Rotations are then rigid in millimeters; without
            it voxels count as cubes.
        swapped_classes: for each class index, its replacement if a patch is flipped across the volume's x axis, from
            left to right (`core.laterality.swapped_classes`); empty for none.
    """
    if not config.enabled:
        return _nothing(len(draws), num_channels)
    patches = Patches(
        config=config,
        num_channels=num_channels,
        shape=patch_shape,
        spacings_mm=np.array((1.0, 1.0, 1.0) if spacing_mm is None else spacing_mm, ndmin=2),
        swaps_classes=len(swapped_classes) > 0,
    )
    drawn: Drawn = {}
    for stage, layout, effects in _streams_of(patches):
        numbers = Numbers(draws, seed=seed, stage=stage, layout=layout, ramp_epochs=config.ramp_epochs)
        for effect in effects:
            drawn |= effect.draw(numbers, patches, drawn)
    # Effects that are never made have the parameters that change nothing.
    made = vars(_nothing(len(draws), num_channels)) | drawn | patches.settings
    return AugmentParams(**(made | {"swapped_classes": swap_table(swapped_classes)}))


@functools.lru_cache(maxsize=8)
def _nothing(num_samples: int, num_channels: int) -> AugmentParams:
    """Parameters that change nothing, made once for all batches; read-only."""
    params = AugmentParams.identity(num_samples, num_channels)
    for value in vars(params).values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return params


class _Stream(NamedTuple):
    """Effects whose words come from one stream."""

    stage: str
    layout: Layout
    effects: list[BuiltInEffect]


def _streams(patches: Patches) -> list[_Stream]:
    by_name = {effect.name: effect for effect in EFFECTS}
    groups = [("augment", [by_name.pop(name) for name in FIRST_STREAM])]
    groups += [(f"augment {name}", [effect]) for name, effect in by_name.items() if effect.is_on(patches.config)]
    streams = []
    for stage, effects in groups:
        words = [effect.words(patches) for effect in effects]
        layout = Layout.of({name: columns for named in words for name, columns in named.items()})
        streams.append(_Stream(stage, layout, [effect for effect, named in zip(effects, words, strict=True) if named]))
    return streams


_last: tuple[AugmentConfig, int, Index3, list[_Stream]] | None = None


def _streams_of(patches: Patches) -> list[_Stream]:
    """As `_streams`. The last ones are kept, as a run has one configuration, which need not have a hash."""
    global _last
    last = _last
    if last is not None and last[0] is patches.config and last[1:3] == (patches.num_channels, patches.shape):
        return last[3]
    streams = _streams(patches)
    _last = (patches.config, patches.num_channels, patches.shape, streams)
    return streams


def augment(
    sources: Sequence[Source | ResidentSource],
    regions: Sequence[Region],
    params: AugmentParams,
    image: torch.Tensor,
    label: torch.Tensor,
    *,
    engine: EngineName = "auto",
) -> None:
    """Fills a batch. A sample comes out the same, bit for bit, whatever else is in the batch; engines agree closely.

    Safe to use from several threads; "native" holds no GIL while it computes, "triton" works on the current stream of
    the batch's device and does not wait for it.

    Args:
        sources: one per sample, the box from `needed_box`. Resident ones must lie on the batch's device.
        regions: one per sample, where its patch lies in the volume.
        params: of b samples and c channels.
        image: (b, c, x, y, z) float32, bfloat16 or float16, in C order or channels_last_3d, written as a whole. Every
            engine computes in float32 and rounds the result; only "triton" does so without a copy.
        label: (b, x, y, z) uint8 in C order, on the same device, written as a whole; int32 for more than 256 classes,
            which plain torch makes for "triton".
        engine: as in `AugmentConfig`.

    Raises:
        ConfigError: the engine is not available here.
    """
    assert image.is_floating_point(), f"image {image.dtype}"
    assert label.dtype in (torch.uint8, torch.int32), f"label {label.dtype}"
    assert image.shape[:2] == (params.num_samples, params.num_channels), f"image {tuple(image.shape)}"
    chosen = chosen_engine(engine, image.device)
    if label.dtype == torch.int32 and chosen != "native":
        _augment_wide(sources, regions, params, image, label, engine=engine)
        return
    if chosen == "triton":
        # Compiled kernels are loaded on first use: a command that needs none does not wait for them.
        from voxelocity.data.augment.triton_engine import augment_batch

        augment_batch(sources, regions, params, image, label)
        return
    work = image
    if image.dtype != torch.float32 or not image.is_contiguous():
        work = torch.empty(image.shape, dtype=torch.float32, device=image.device)
    if chosen == "native":
        from voxelocity.data.augment import native_engine
    else:
        from voxelocity.data.augment import torch_engine
    samples = zip(sources, regions, strict=True)
    if chosen == "torch":
        for row, (source, region) in enumerate(samples):
            torch_engine.augment_sample(source, region, params, row, work[row], label[row])
    else:
        images, labels = work.numpy(), label.numpy()
        for row, (source, region) in enumerate(samples):
            assert isinstance(source, Source), "voxels on a device cannot be used on a CPU"
            native_engine.augment_sample(source, region, params, row, images[row], labels[row])
    if work is not image:
        image.copy_(work)


def _augment_wide(
    sources: Sequence[Source | ResidentSource],
    regions: Sequence[Region],
    params: AugmentParams,
    image: torch.Tensor,
    label: torch.Tensor,
    *,
    engine: EngineName,
) -> None:
    """As `augment`, of more classes than engines take: they make the images, and plain torch the labels."""
    from voxelocity.data.augment import torch_engine

    low: list[Source] = []
    for row, (source, region) in enumerate(zip(sources, regions, strict=True)):
        assert isinstance(source, Source), "a device keeps no labels of more than 256 classes"
        torch_engine.augment_label(source, region, params, row, label[row])
        # What becomes of these bytes does not matter.
        low.append(replace(source, label=source.label.astype(np.uint8)))
    unswapped = replace(params, is_swapped=np.zeros_like(params.is_swapped))
    unused = torch.empty(label.shape, dtype=torch.uint8, device=label.device)
    augment(low, regions, unswapped, image, unused, engine=engine)


def chosen_engine(engine: EngineName, device: torch.device) -> Engine:
    """The engine that this name means for batches on this device.

    Raises:
        ConfigError: it is not available here.
    """
    if engine == "torch":
        return "torch"
    if engine == "triton" or (engine == "auto" and device.type == "cuda"):
        return _triton(engine, device)
    if engine == "auto" and device.type != "cpu":
        return "torch"
    return _native(engine, device)


def filling_device(engine: EngineName, device: torch.device) -> torch.device:
    """Where the engine fills batches for this device: there, or on the CPU, to be copied afterwards.

    Raises:
        ConfigError: the engine is not available here.
    """
    cpu = torch.device("cpu")
    if engine == "triton" or (engine == "auto" and device.type == "cuda" and has_triton()):
        chosen_engine(engine, device)
        return device
    if engine == "auto" and device.type == "cuda":
        _warn_of_missing("triton is not installed", "on the CPU and not on the CUDA device", "install triton", "native")
    chosen_engine(engine, cpu)
    return cpu


def _triton(engine: EngineName, device: torch.device) -> Engine:
    if device.type != "cuda" and not _is_interpreted():
        raise ConfigError(f"augment: engine 'triton' fills batches on CUDA, not on {device}; choose engine: auto")
    if has_triton():
        return "triton"
    if engine == "triton":
        raise ConfigError("augment: engine 'triton' needs the package triton; install it, or choose engine: torch")
    _warn_of_missing("triton is not installed", "in plain torch, many times slower", "install triton", "torch")
    return "torch"


def _native(engine: EngineName, device: torch.device) -> Engine:
    if device.type != "cpu":
        raise ConfigError(f"augment: engine 'native' cannot fill a batch on {device}; choose engine: auto")
    if has_loops():
        return "native"
    if engine == "native":
        reason, _, cure = why_not().partition("; ")
        raise ConfigError(
            f"augment: engine 'native' needs the compiled loops: {reason}; {cure}, or choose engine: torch"
        )
    return "torch"


def _is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python on the CPU, as in tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _warn_of_missing(what: str, how: str, cure: str, engine: Engine) -> None:
    """Warns once of what is missing, of how patches are augmented without it, and of the engine that does that."""
    warnings.warn(
        f"augment: {what}, so patches are augmented {how}; {cure}, or choose engine: {engine} to accept that",
        stacklevel=4,
    )
