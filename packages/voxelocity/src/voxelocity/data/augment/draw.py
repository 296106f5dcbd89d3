"""From draws to parameters: the random numbers of all effects, for all samples of a batch at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from voxelocity.core.batch import Draw
from voxelocity.core.region import Index3
from voxelocity.core.volume import Spacing
from voxelocity.data.augment.built_in import EFFECTS, FIRST_STREAM, BuiltInEffect, Drawn, Patches
from voxelocity.data.augment.config import AugmentConfig
from voxelocity.data.augment.numbers import Layout, Numbers
from voxelocity.data.augment.params import AugmentParams, swap_table


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
