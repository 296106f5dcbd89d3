"""What a training takes over from a model of another toolkit: its network as data, its grid and its intensities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from voxelocity.core.region import Index3
from voxelocity.data.prepare import CropToNonzero, OrientToRAS
from voxelocity.infer.model import Model
from voxelocity.infer.models.bundle import read_names
from voxelocity.infer.models.bundle_config import BundleConfig
from voxelocity.infer.models.bundle_network import ShapedNetwork
from voxelocity.infer.models.bundle_prepare import BundlePreparation
from voxelocity.infer.models.kinds import METADATA
from voxelocity.infer.models.nnunet_prepare import NnunetPreparation, Normalization
from voxelocity.step import NetworkConfig
from voxelocity.step.foreign_networks import CLASS, FOREIGN, NNUNET, levels_of
from voxelocity.step.nnunet_network import PlannedUNet
from voxelocity_observe.core.errors import ConfigError, InputError
from voxelocity_observe.core.plain import shortened

MODES = {"CTNormalization": "window", "ZScoreNormalization": "zscore", "NoNormalization": "none"}
"""What a plan has for a scheme of nnU-Net."""
_ENDS = ("in_channels", "out_channels")
_WHY_NOT = {
    "UNETR": "its position embedding is for one patch size, but a plan chooses the patch",
    "DiNTS": "its paths are in a separate file; --set network.name=dints with network.paths (docs/plan.md) trains "
    "one from new weights",
    "FlexibleUNet": "its encoder comes from a library of classifiers",
}
"""Why a training cannot start from networks that `predict` takes; others have no description of their levels here."""


@dataclass(frozen=True, kw_only=True)
class ForeignSource:
    """A model of another toolkit as a training here can continue it, its axes in the order (x, y, z).

    Attributes:
        network: how it is built.
        weights: by name.
        patch: its windows, in voxels; 0 along an axis for the length of a scan.
        keys: of the plan, by dotted key: the preparation of scans.
        notes: what of its preparation is otherwise here, in words.
        outputs: names of its logits, each of a class that may overlap others, where the model's description has others,
            or in another order; else empty.
    """

    network: NetworkConfig
    weights: Mapping[str, torch.Tensor]
    patch: Index3
    keys: Mapping[str, Any]
    notes: tuple[str, ...]
    outputs: tuple[str, ...] = ()


def foreign_source(model: Model) -> ForeignSource:
    """What a training takes over from an opened model of nnU-Net or a MONAI bundle.

    Raises:
        InputError: its network is not one that can be trained here.
    """
    network, preparation = model.network, model.preparation
    if not isinstance(network, torch.nn.Module) or not isinstance(preparation, NnunetPreparation | BundlePreparation):
        raise InputError(
            f"train: {model.folder} holds several networks, or one that another runtime runs, but a run starts from "
            "a single network; name the folder of one fold, such as fold_0, or the model that it was exported from"
        )
    try:
        if isinstance(preparation, NnunetPreparation):
            return _of_nnunet(model, network, preparation)
        return _of_bundle(model, network, preparation)
    except ConfigError as error:
        raise InputError(f"train: {model.folder} cannot be a start ({error}); start from another model") from None


def intensity_keys(channels: Sequence[Normalization]) -> dict[str, Any]:
    """The keys of a plan that normalize as nnU-Net does; none if its channels differ, or no key says the same."""
    first = channels[0]
    if any(channel != first for channel in channels) or first.scheme not in MODES:
        return {}
    found: dict[str, Any] = {"mode": MODES[first.scheme]}
    if first.scheme == "CTNormalization":
        found |= {"low": first.low, "high": first.high, "mean": first.mean, "std": first.std}
    elif first.scheme == "ZScoreNormalization":
        found["nonzero_only"] = first.inside_only
    return {f"data.prepare.intensity.{key}": value for key, value in found.items()}


def _of_nnunet(model: Model, network: torch.nn.Module, preparation: NnunetPreparation) -> ForeignSource:
    if not isinstance(network, PlannedUNet) or len(network.plan.strides[0]) != len(preparation.axes):
        raise InputError(
            f"train: {model.folder} holds several networks, or a 2-D network, but a run starts from a single 3-D "
            "one; name the folder of one fold, such as fold_0"
        )
    # nnU-Net's arrays are (z, y, x), and its plan may turn them.
    x, y, z = (preparation.axes.index(axis) for axis in range(3))
    turned = _Turned(order=(x, y, z))
    plan = network.plan.to_plain()
    plan |= {key: [turned.of(values) for values in plan[key]] for key in ("kernel_sizes", "strides")}
    keys: dict[str, Any] = {
        "data.prepare.orientation": "RAS" if preparation.is_reoriented else "keep",
        "data.prepare.crop": "nonzero",
        "data.prepare.spacing_mm": [*turned.of(preparation.spacing_mm)],
    }
    intensity = intensity_keys(preparation.channels)
    schemes = ", ".join(dict.fromkeys(channel.scheme for channel in preparation.channels))
    notes = () if intensity else (f"it normalizes by {schemes}, so our rule chooses",)
    return ForeignSource(
        network=_config({CLASS: NNUNET, **plan}, network),
        weights={name: turned.weight(tensor) for name, tensor in network.state_dict().items()},
        patch=turned.of(model.spec.window.shape_voxel),
        keys=keys | intensity,
        notes=notes,
    )


def _of_bundle(model: Model, network: torch.nn.Module, preparation: BundlePreparation) -> ForeignSource:
    config = BundleConfig(model.folder)
    described = config.component("@network_def", "network_def")
    name = described.name
    if name not in FOREIGN:
        why = _WHY_NOT.get(name, "its levels, which the rules of a plan need, are not described")
        raise InputError(
            f"train: {model.folder} has the network {name}, which cannot be fine-tuned here: {why}. It can start from "
            f"{', '.join(known for known in FOREIGN if known != NNUNET)}, from nnU-Net's results and from a run; "
            "leave out --from to train new weights, or predict with the unchanged model: `voxelocity predict`"
        )
    given = {key: value for key, value in described.arguments.items() if key not in _ENDS}
    arguments = config.resolved(given, described.where)
    if arguments.get("spatial_dims", 3) != 3:
        raise InputError(
            f"train: {model.folder} has a 2-D network (spatial_dims {shortened(arguments['spatial_dims'])}), and "
            "a run trains a 3-D one; start from a 3-D model, or leave out --from"
        )
    keys, notes = _prepared(preparation, num_channels=len(model.spec.channels))
    outputs: tuple[str, ...] = ()
    if isinstance(network, ShapedNetwork):
        # What the bundle chooses, orders and adds comes after the weights, which have all of its channels.
        network, outputs = network.network, tuple(read_names(model.folder / METADATA)[1].values())
    return ForeignSource(
        network=_config({CLASS: name, **arguments}, network),
        weights=network.state_dict(),
        patch=model.spec.window.shape_voxel,
        keys=keys,
        notes=notes,
        outputs=outputs,
    )


def _config(architecture: Mapping[str, Any], network: torch.nn.Module) -> NetworkConfig:
    widths, strides = levels_of(architecture)
    has_batch = any(isinstance(module, torch.nn.BatchNorm3d) for module in network.modules())
    return NetworkConfig.parse(
        {
            "name": "foreign", "architecture": dict(architecture), "widths": widths, "strides": strides,
            "norm": "batch" if has_batch else "instance",
        },
        where="network",
    )  # fmt: skip


@dataclass(frozen=True)
class _Turned:
    """Turns what is in the axes of another toolkit: our axis i is its axis `order[i]`."""

    order: Index3

    def of(self, values: Sequence[Any]) -> tuple[Any, Any, Any]:
        x, y, z = (values[axis] for axis in self.order)
        return (x, y, z)

    def weight(self, tensor: torch.Tensor) -> torch.Tensor:
        """A kernel (out, in, x, y, z); other tensors have no axes of space."""
        return tensor.permute(0, 1, *(2 + axis for axis in self.order)).contiguous() if tensor.ndim == 5 else tensor


def _prepared(preparation: BundlePreparation, *, num_channels: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keys of the plan, and what is otherwise."""
    keys: dict[str, Any] = {"data.prepare.orientation": "keep"}
    notes: list[str] = []
    is_scaled = False
    for stage in preparation.stages:
        # The stages of intensities and spacings are private to their module; what they hold is not.
        name, spacing_mm = getattr(stage, "name", ""), getattr(stage, "spacing_mm", None)
        if isinstance(stage, OrientToRAS):
            keys["data.prepare.orientation"] = "RAS"
        elif isinstance(stage, CropToNonzero):
            keys["data.prepare.crop"] = "nonzero"
            if is_scaled:
                notes.append("its CropForegroundd keeps what is above 0 once scaled, and here what is not 0 before")
        elif spacing_mm is not None:
            keys["data.prepare.spacing_mm"] = [*spacing_mm]
        elif name in _SCALINGS and not is_scaled:
            options = dict(getattr(stage, "options", ()))
            found = _SCALINGS[name](options, notes)
            if num_channels > 1 and options.get("channel_wise") is False:
                notes.append(f"its {name} takes all channels as one, and here each is scaled by itself")
            keys |= {f"data.prepare.intensity.{key}": value for key, value in found.items()}
            is_scaled = bool(found)
        elif name:
            notes.append(f"its {name} has no counterpart here")
    return keys, tuple(notes)


def _window(options: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    low, high = float(options["a_min"]), float(options["a_max"])
    to_low, to_high = options.get("b_min"), options.get("b_max")
    scaled = float(1.0 if to_high is None else to_high) - float(to_low or 0.0)
    if not low < high or scaled <= 0.0:
        notes.append("its ScaleIntensityRanged inverts intensities, so our rule chooses")
        return {}
    if not options.get("clip"):
        notes.append(f"its ScaleIntensityRanged keeps intensities beyond {low:g} to {high:g}, which are clipped here")
    std = (high - low) / scaled
    return {"mode": "window", "low": low, "high": high, "mean": low - float(to_low or 0.0) * std, "std": std}


def _zscore(options: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    return {"mode": "zscore", "nonzero_only": bool(options.get("nonzero"))}


_SCALINGS: Mapping[str, Callable[[Mapping[str, Any], list[str]], dict[str, Any]]] = {
    "ScaleIntensityRanged": _window,
    "NormalizeIntensityd": _zscore,
}
"""What a plan has for a transform of a bundle."""
