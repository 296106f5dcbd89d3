"""Keys of our plan from nnU-Net's plans: spacing, patch, batch, intensities and network, as far as ours has them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from voxelocity.core.region import Index3
from voxelocity.infer.models.nnunet_plans import (
    Configuration,
    KnownKeys,
    Plans,
    inherited_keys,
    normalizations,
    parse_keys,
)
from voxelocity.infer.models.nnunet_prepare import Normalization
from voxelocity.infer.models.spec import read_object
from voxelocity.planning.foreign_source import MODES, intensity_keys
from voxelocity.step.nnunet_network import Architecture
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.quantities import count_text

_CONFIGURATION = "3d_fullres"
_CURE = "leave out --plans, or train with nnU-Net itself"


class _Described(KnownKeys):
    arch_kwargs: dict[str, Any]


class _TrainedConfiguration(Configuration):
    patch_size: Index3
    spacing: tuple[float, float, float]
    batch_size: int = Field(ge=1)
    architecture: _Described | None = None


def plans_keys(named: Path, *, num_channels: int) -> tuple[dict[str, Any], dict[str, str]]:
    """The keys that a plan takes over from nnU-Net's plans, and the reason of each; keys that the user sets win.

    Warns of what the plans ask for and a training here does otherwise.

    Args:
        named: the file, or FILE:CONFIGURATION in place of 3d_fullres.
        num_channels: of the data set.

    Raises:
        InputError: the file cannot be read, has no such configuration, or asks for what no key says.
    """
    path, name = named, _CONFIGURATION
    if not named.exists() and ":" in named.name:
        path, name = named.with_name(named.name.rpartition(":")[0]), named.name.rpartition(":")[2]
    cure = "name nnU-Net's plans with --plans"
    try:
        values = read_object(path, unreadable=cure, damaged=f"{cure}, or copy the file again")
    except InputError as error:
        raise InputError(f"plan: {str(error).removeprefix('infer: ')}") from None
    plans = parse_keys(Plans, values, path, room="plan", cure=_CURE)
    where = f"{path}: {name}"
    if name not in plans.configurations:
        raise InputError(f"plan: {path} has no configuration {name!r}; write {path}:{'|'.join(plans.configurations)}")
    keys = _trained(inherited_keys(plans, name, where, room="plan"), where, num_channels)
    channels = normalizations(plans, keys, num_channels, where, room="plan")
    # nnU-Net's arrays are (z, y, x), and the plan may turn them.
    order = [plans.transpose_forward.index(2 - axis) for axis in range(3)]
    patch = [keys.patch_size[axis] for axis in order]
    is_reoriented = plans.image_reader_writer.endswith("WithReorient")
    found = {
        "data.prepare.orientation": "RAS" if is_reoriented else "keep",
        "data.prepare.crop": "nonzero",
        "data.prepare.spacing_mm": [keys.spacing[axis] for axis in order],
        "data.patch.shape_voxel": patch,
        "data.batch_size": keys.batch_size,
        "window.shape_voxel": patch,
        **_intensity(channels, where),
        **_network(keys.architecture, order, where),
    }
    return found, dict.fromkeys(found, f"from {path.name}")


def _trained(values: Mapping[str, Any], where: str, num_channels: int) -> _TrainedConfiguration:
    """The configuration as far as a training here depends on it.

    Raises:
        InputError: it is for planes, for the second stage of a cascade, or for another number of channels.
    """
    patch, schemes = values.get("patch_size"), values.get("normalization_schemes")
    if isinstance(patch, list) and len(patch) == 2:
        raise InputError(f"plan: {where} is 2-D, but training here is 3-D; name a 3-D configuration")
    if values.get("previous_stage"):
        raise InputError(
            f"plan: {where} is the second stage of a cascade, which takes the predictions of the first as channels, "
            "but training here has a single network; name another configuration"
        )
    if isinstance(schemes, list) and len(schemes) != num_channels:
        raise InputError(
            f"plan: {where} is for {count_text(len(schemes), 'channel')}, and this data set has {num_channels}: the "
            "plans belong to another data set; give those of this one, or leave out --plans"
        )
    return parse_keys(_TrainedConfiguration, values, where, room="plan", cure=_CURE)


def _intensity(channels: Sequence[Normalization], where: str) -> dict[str, Any]:
    if not (found := intensity_keys(channels)):
        schemes = ", ".join(channel.scheme for channel in channels)
        raise InputError(
            f"plan: {where} normalizes its channels by {schemes}; training here uses one of {', '.join(MODES)} for "
            f"all of them, with the same numbers; {_CURE}"
        )
    return found


def _network(described: _Described | None, order: Sequence[int], where: str) -> dict[str, Any]:
    """DynUNet with the levels of the plan; warns of what its levels have otherwise."""
    if described is None:
        _warn(f"plan: {where} is from an earlier release and names no network; our rules choose it")
        return {}
    plan = parse_keys(Architecture, described.arch_kwargs, where, room="plan", cure=_CURE)
    if plan.num_axes != len(order):
        raise InputError(f"plan: {where} has a 2-D network for patches of three axes; {_CURE}")
    strides = [[stride[axis] for axis in order] for stride in plan.strides]
    kernels = [[kernel[axis] for axis in order] for kernel in plan.kernel_sizes]
    other = []
    if plan.n_blocks_per_stage:
        other.append(f"residual blocks {list(plan.n_blocks_per_stage)}, and DynUNet has two plain convolutions a level")
    elif {*plan.n_conv_per_stage, *plan.n_conv_per_stage_decoder} != {2}:
        other.append(f"convolutions {list(plan.n_conv_per_stage)}, and DynUNet has two a level")
    ours = [[3 if s > 1 or max(stride) == 1 else 1 for s in stride] for stride in strides]
    if kernels != ours:
        other.append(f"kernels {json.dumps(kernels)} along (x, y, z), and DynUNet {json.dumps(ours)}")
    for what in other:
        _warn(f"plan: the network of {where} has {what}; its widths and strides are taken over")
    return {
        "network.name": "dynunet",
        "network.widths": list(plan.features_per_stage),
        "network.strides": strides[1:],
        "network.stem_stride": [1, 1, 1],
        "network.norm": "batch" if "BatchNorm" in plan.norm_op else "instance",
        "network.num_res_units": 0,
    }


def _warn(text: str) -> None:
    # The place that called `plan_cases`.
    warnings.warn(text, UserWarning, stacklevel=6)
