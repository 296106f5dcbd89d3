"""Keys of our plan from nnU-Net's plans: spacing, patch, batch, intensities and network, as far as ours has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from voxelocity.core.region import Index3
from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.nnunet_plans import Configuration, Plans, inherited_keys, normalizations, parse_keys
from voxelocity.infer.models.nnunet_prepare import Normalization
from voxelocity.planning import SharedKeys
from voxelocity.planning.foreign_source import MODES, intensity_keys
from voxelocity.step.nnunet_network import Architecture
from voxelocity_observe.core.errors import InputError

_CONFIGURATION = "3d_fullres"
_CURE = "train without --plans, or with nnU-Net itself"


class _TrainedConfiguration(Configuration):
    patch_size: Index3
    spacing: tuple[float, float, float]
    batch_size: int = Field(ge=1)
    architecture: dict[str, Any] = Field(default={})


def shared_keys(named: Path, *, num_channels: int, warn: Callable[[str], None]) -> SharedKeys:
    """The keys that a training takes over from nnU-Net's plans; keys that the user sets win over them.

    Args:
        named: the file, or FILE:CONFIGURATION in place of 3d_fullres.
        num_channels: of the data set.
        warn: called with what the plans ask for and a training here does otherwise.

    Raises:
        InputError: the file cannot be read, has no such configuration, or asks for what no key says.
    """
    path, name = named, _CONFIGURATION
    if not named.exists() and ":" in named.name:
        path, name = named.with_name(named.name.rpartition(":")[0]), named.name.rpartition(":")[2]
    plans = parse_keys(Plans, read_json(path), path, room="train", cure=_CURE)
    where = f"{path}: {name}"
    if name not in plans.configurations:
        raise InputError(f"train: {path} has no configuration {name!r}; write {path}:{'|'.join(plans.configurations)}")
    values = inherited_keys(plans, name, where, room="train")
    keys = parse_keys(_TrainedConfiguration, values, where, room="train", cure=_CURE)
    channels = normalizations(plans, keys, num_channels, where, room="train")
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
        **_network(keys.architecture, order, where, warn),
    }
    return SharedKeys(values=found, reason=f"from {path.name}")


def _intensity(channels: Sequence[Normalization], where: str) -> dict[str, Any]:
    if not (found := intensity_keys(channels)):
        schemes = ", ".join(channel.scheme for channel in channels)
        raise InputError(
            f"train: {where} normalizes its channels by {schemes}; a training here has one of {', '.join(MODES)} for "
            f"all of them, with the same numbers; {_CURE}"
        )
    return found


def _network(
    described: Mapping[str, Any], order: Sequence[int], where: str, warn: Callable[[str], None]
) -> dict[str, Any]:
    """DynUNet with the levels of the plan; warns of what its levels have otherwise."""
    if not described:
        warn(f"train: {where} is of an earlier release and names no network; our rules choose it")
        return {}
    plan = parse_keys(Architecture, described.get("arch_kwargs", {}), where, room="train", cure=_CURE)
    if plan.num_axes != len(order):
        raise InputError(f"train: {where} has a network of planes for patches of three axes; {_CURE}")
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
        warn(f"train: the network of {where} has {what}; its widths and strides are taken over")
    return {
        "network.name": "dynunet",
        "network.widths": list(plan.features_per_stage),
        "network.strides": strides[1:],
        "network.stem_stride": [1, 1, 1],
        "network.norm": "batch" if "BatchNorm" in plan.norm_op else "instance",
        "network.num_res_units": 0,
    }
