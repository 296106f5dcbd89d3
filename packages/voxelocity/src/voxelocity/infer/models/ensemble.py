"""Several models as one: the mean of their logits, window by window, or of their probabilities on the scan's grid.

nnU-Net averages its folds in the first way. The mean of logits commutes with blending, so the ensemble needs the memory
of one prediction, not of one for each model. Models that prepare or cover scans in different ways allow the second one
alone, as nnU-Net averages configurations (`infer.parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import torch

from voxelocity.core.axis_order import orientation_of, turn_onto
from voxelocity.core.contracts import DeterministicStage, StageEffect
from voxelocity.core.volume import Volume, VolumeSpec
from voxelocity.infer.division import CaseDivision
from voxelocity.infer.model import ForeignNetwork, Model, passes_of, placed
from voxelocity_observe.core.device import Device
from voxelocity_observe.core.errors import InputError, ScanError


def ensemble_of(models: Sequence[Model]) -> Model:
    """One model with the mean of all: of logits if all prepare and cover scans alike, else of probabilities.

    Only the largest component is kept of a class that all models do so for.

    Raises:
        InputError: two models differ in classes or channels.
    """
    first = models[0]
    for other in models[1:]:
        _check_same(first, other, _meaning(first), _meaning(other))
    if all(_covering(model) == _covering(first) for model in models):
        return mean_of(models)
    return _as_one(models, parts=tuple(models), is_average=True)


def mean_of(models: Sequence[Model]) -> Model:
    """One model whose logits are the mean of the logits of all.

    Their preparations may differ in intensities, as those of cross-validation folds do; each network then gets the
    scan as it was trained on it. Only the largest component is kept of a class that all models do so for.

    Raises:
        InputError: two models differ in classes, channels, windows or the grid they are prepared on.
    """
    first = models[0]
    for other in models[1:]:
        _check_same(first, other, _meaning(first) | _covering(first), _meaning(other) | _covering(other))
    distinct = {model.preparation.fingerprint(): model.preparation for model in models}
    order = list(distinct)
    num_channels = first.describe_prepared().num_channels
    starts = [num_channels * order.index(model.preparation.fingerprint()) for model in models]
    return _as_one(
        models,
        network=MeanLogits([model.network for model in models], starts, num_channels).eval(),
        preparation=StackedPreparations(list(distinct.values())) if len(distinct) > 1 else first.preparation,
    )


def _as_one(models: Sequence[Model], **changes: Any) -> Model:
    """The first model with these changes, and with what all know about their training and quality."""
    spec = models[0].spec
    window = spec.window.model_copy(update={"batch_size": min(model.spec.window.batch_size for model in models)})
    kept = tuple(name for name in spec.keep_largest if all(name in model.spec.keep_largest for model in models))
    return replace(
        models[0],
        spec=spec.model_copy(update={"window": window, "keep_largest": kept, "division": _division(models)}),
        doubts=tuple(dict.fromkeys(doubt for model in models for doubt in model.doubts)),
        unlearned="; ".join(model.unlearned for model in models if model.unlearned),
        **changes,
    )


def _division(models: Sequence[Model]) -> CaseDivision | None:
    """What any of the models was trained on; None if that is not known of one."""
    found = [model.spec.division for model in models]
    known = [division for division in found if division is not None]
    return reduce(CaseDivision.joined, known) if len(known) == len(found) else None


class MeanLogits(torch.nn.Module):
    """The mean of the logits of several networks, each of which sees its own channels.

    With `is_mean` false, the logits of all of them, one after the other along the channels.

    Args:
        networks: (b, c, x, y, z) to logits (b, k, x, y, z); exported ones too.
        starts: for each network, its first channel.
        num_channels: of each network.
    """

    def __init__(
        self, networks: Sequence[torch.nn.Module | ForeignNetwork], starts: Sequence[int], num_channels: int
    ) -> None:
        super().__init__()
        # Only those of torch are moved to a device with this module.
        self.networks = torch.nn.ModuleList(network for network in networks if isinstance(network, torch.nn.Module))
        self._all = tuple(networks)
        self._starts, self._num_channels = tuple(starts), num_channels
        self.is_mean = True

    def forward(self, images_bcxyz: torch.Tensor) -> torch.Tensor:
        inputs = [images_bcxyz[:, start : start + self._num_channels] for start in self._starts]
        if not self.is_mean:
            # Copies, as below.
            return torch.cat([network(part).clone() for network, part in zip(self._all, inputs, strict=True)], dim=1)
        total: torch.Tensor | None = None
        for network, part in zip(self._all, inputs, strict=True):
            logits = network(part)
            # A copy, because the output may be a buffer that the network's next call overwrites.
            total = logits.float().clone() if total is None else total.add_(logits)
        assert total is not None
        return total.div_(len(self._all))


class StackedPreparations:
    """A scan prepared in several ways that differ only in intensities, one after the other along the channels."""

    def __init__(self, stages: Sequence[DeterministicStage]) -> None:
        self._stages = tuple(stages)

    def describe(self, spec: VolumeSpec) -> StageEffect:
        effects = [stage.describe(spec) for stage in self._stages]
        num_channels = sum(effect.spec.num_channels for effect in effects)
        dtype = effects[0].spec.dtype if len(effects) == 1 else "float32"
        stacked = replace(effects[0].spec, num_channels=num_channels, dtype=dtype)
        scratch_bytes = max(effect.scratch_bytes for effect in effects) + stacked.image_bytes
        return StageEffect(spec=stacked, scratch_bytes=scratch_bytes)

    def on_device(self, device: Device, on_windows: Callable[[], None] | None = None) -> StackedPreparations:
        """As `NeedsDevice`."""
        return StackedPreparations([placed(stage, device, on_windows) for stage in self._stages])

    def num_passes(self, spec: VolumeSpec) -> int:
        """As `NeedsDevice`."""
        return sum(passes_of(stage, spec) for stage in self._stages)

    def fingerprint(self) -> str:
        return "+".join(stage.fingerprint() for stage in self._stages)

    def __call__(self, volume: Volume) -> Volume:
        """The volume with the channels of each preparation, as float32 if there are several.

        Raises:
            ScanError: as the preparations, or two of them crop or turn the scan differently.
        """
        prepared = [stage(volume) for stage in self._stages]
        if len(prepared) == 1:
            return prepared[0]
        first = prepared[0].grid
        for other in prepared[1:]:
            order = turn_onto(other.grid, first)
            if order is not None and order.is_identity:
                continue
            if order is not None:
                # Each network knows anatomy in its own order of axes, so turning its input would mislead it.
                how = f"turn it to {orientation_of(first)} and {orientation_of(other.grid)}"
            elif other.grid.shape != first.shape:
                how = f"crop it to {first.shape} and {other.grid.shape} voxels"
            else:
                apart_mm = first.largest_difference_mm(other.grid)
                how = f"turn or crop it in other ways (voxels of one number lie up to {apart_mm:.4g} mm apart)"
            raise ScanError(
                f"infer: case '{volume.case_id}': the models of the ensemble {how}, so their predictions cannot be "
                "averaged; predict with each alone"
            )
        return prepared[0].with_(image=np.concatenate([part.intensities() for part in prepared]), scaling=())


def _meaning(model: Model) -> dict[str, Any]:
    """What models that are averaged must share."""
    spec = model.spec
    return {"labels": spec.labels, "channels": spec.channels, "overlapping classes": spec.region_order}


def _covering(model: Model) -> dict[str, Any]:
    """What models must share whose logits are averaged window by window."""
    spec, prepared = model.spec, model.describe_prepared()
    return {
        # How many at once changes no prediction, and follows the free memory of the machine that planned.
        "windows": spec.window.model_copy(update={"batch_size": 1}),
        "interpolated values": spec.restored,
        "spacings after preparation": tuple(round(spacing, 6) for spacing in prepared.grid.spacing_mm),
        # The second network of a cascade takes more than others.
        "numbers of prepared channels": prepared.num_channels,
    }


def _check_same(first: Model, other: Model, of_first: dict[str, Any], of_other: dict[str, Any]) -> None:
    for what, value in of_first.items():
        if value != of_other[what]:
            raise InputError(
                f"infer: the models in {first.folder} and {other.folder} cannot be averaged: their {what} differ "
                f"({value} and {of_other[what]}); predict with each alone, or train both with one plan "
                "(voxelocity train --folds all)"
            )
