"""A results folder of nnU-Net v2: `plans.json`, `dataset.json` and a checkpoint for each fold, all read as data.

What its predictor does is described by `PredictionSpec` and `NnunetPreparation`; nnU-Net need not be installed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict

from voxelocity.core.region import Index3
from voxelocity.infer.model import Model, PredictionSpec
from voxelocity.infer.models.ensemble import mean_of
from voxelocity.infer.models.foreign_files import network_with, read_checkpoint, read_json
from voxelocity.infer.models.kinds import PLANS, nnunet_results
from voxelocity.infer.models.nnunet_plans import (
    DATASET,
    Configuration,
    DatasetKeys,
    KnownKeys,
    Length,
    Plans,
    damaged,
    inherited_keys,
    normalizations,
    parse_keys,
)
from voxelocity.infer.models.nnunet_prepare import Interpolation, NnunetPreparation
from voxelocity.step.nnunet_network import MOST_LEVELS, NETWORKS, Architecture, PlannedUNet
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import excerpt, shortened

# nnU-Net trains five.
_MOST_FOLDS = 50
_CHECKPOINTS = ("checkpoint_final.pth", "checkpoint_best.pth")
_TURNING_READERS = ("NibabelIOWithReorient", "SimpleITKIOWithReorient")
# Of nnU-Net's own trainers, those that people use; none changes the network of the plans.
_TRAINERS = r"nnUNetTrainer(_?(\d+epochs|NoMirroring|onlyMirror01|NoDA|DA5|DAOrd0|DASegOrd0))*"


class _ResampleLogits(KnownKeys):
    order: Literal[1]
    order_z: Literal[0, 1] = 0
    force_separate_z: bool | None = False


class _Configuration(Configuration):
    patch_size: Index3
    spacing: tuple[Length, Length, Length]
    resampling_fn_probabilities: Literal["resample_data_or_seg_to_shape"]
    resampling_fn_probabilities_kwargs: _ResampleLogits


class _InitArguments(KnownKeys):
    configuration: str


class _Checkpoint(KnownKeys):
    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)

    network_weights: dict[str, torch.Tensor]
    init_args: _InitArguments
    trainer_name: str
    inference_allowed_mirroring_axes: tuple[int, ...] | None = None


def open_nnunet(path: Path) -> Model:
    """The model in a results folder, the mean of its folds if there are several; or that of one fold.

    As in nnU-Net, the fold "all" is used only if it is the only one. A checkpoint that is not the final one is used
    only if there is no other.

    Args:
        path: `.../TRAINER__PLANS__CONFIGURATION`, or a folder `fold_N` in it.

    Raises:
        InputError: a file is missing or damaged, or the model needs something that Voxelocity does not do as nnU-Net
            does it.
    """
    folder = nnunet_results(path)
    plans = parse_keys(Plans, read_json(folder / PLANS), folder / PLANS)
    dataset = parse_keys(DatasetKeys, read_json(folder / DATASET), folder / DATASET)
    folds = [path] if path != folder else _folds_of(folder)
    models = [_open_fold(fold, plans, dataset) for fold in folds]
    return models[0] if len(models) == 1 else mean_of(models)


def _folds_of(folder: Path) -> list[Path]:
    folds = sorted(path for path in folder.glob("fold_*") if any((path / name).is_file() for name in _CHECKPOINTS))
    if not folds:
        raise InputError(
            f"infer: {folder} holds no trained fold: no fold_*/{_CHECKPOINTS[0]} and no fold_*/{_CHECKPOINTS[1]}; "
            "copy the folder again, or train it with nnUNetv2_train"
        )
    if len(folds) > _MOST_FOLDS:
        raise InputError(
            f"infer: {folder} holds {len(folds)} trained folds, more than the {_MOST_FOLDS} that are averaged; name one"
        )
    return [fold for fold in folds if fold.name != "fold_all"] or folds


def _open_fold(fold: Path, plans: Plans, dataset: DatasetKeys) -> Model:
    path = next((path for name in _CHECKPOINTS if (path := fold / name).is_file()), None)
    if path is None:
        raise InputError(f"infer: {fold} holds neither {' nor '.join(_CHECKPOINTS)}; name a fold that is trained")
    checkpoint = parse_keys(_Checkpoint, read_checkpoint(path), path)
    where = f"{fold.parent / PLANS}: {checkpoint.init_args.configuration}"
    values = _configuration(plans, checkpoint.init_args.configuration, where)
    configuration = parse_keys(_Configuration, values, where)
    labels, region_order = _labels(dataset, fold.parent / DATASET)
    spec = parse_keys(
        PredictionSpec,
        {
            # By number: "10" comes after "9".
            "channels": [str(dataset.channels[key]) for key in sorted(sorted(dataset.channels), key=len)],
            "labels": labels,
            "region_order": region_order,
            "restored": "logits",
            "window": {
                "shape_voxel": configuration.patch_size,
                # torch convolves a single window in a slower way: 0.9 s for a hippocampus, 0.2 s in pairs.
                "batch_size": 2,
                "spread": "even",
                "blend": "nnunet",
                "mirror_axes": checkpoint.inference_allowed_mirroring_axes or (),
            },
            # nnU-Net's choice on a GPU; a CPU computes in float32.
            "precision": {"compute": "float16"},
        },
        fold.parent,
    )
    return Model(
        folder=fold,
        network=_network(path, checkpoint, values, spec, where),
        spec=spec,
        preparation=_preparation(plans, configuration, len(spec.channels), where),
        doubts=_doubts(path, checkpoint),
    )


def _configuration(plans: Plans, name: str, where: str) -> dict[str, Any]:
    values = inherited_keys(plans, name, where)
    if values.get("previous_stage"):
        raise InputError(
            f"infer: {where} is the second network of a cascade (previous_stage {values['previous_stage']}), which is "
            "not supported; predict with the model of 3d_fullres or 3d_lowres, or with nnU-Net itself"
        )
    patch = values.get("patch_size")
    if isinstance(patch, list) and len(patch) == 2:
        raise InputError(
            f"infer: {where} is a 2-D network, which is not supported; predict with the model of 3d_fullres or "
            "3d_lowres, or with nnU-Net itself"
        )
    return values


def _labels(dataset: DatasetKeys, where: Path) -> tuple[dict[int, str], tuple[int, ...]]:
    """File value to class name, and `PredictionSpec.region_order`."""
    parts = {
        name: (value,) if isinstance(value, int) else value
        for name, value in dataset.labels.items()
        if name != "ignore"
    }
    if all(len(values) == 1 for values in parts.values()):
        labels = {values[0]: name for name, values in parts.items()}
        if sorted(labels) != list(range(len(parts))):
            raise damaged(where, f": labels has the values {sorted(labels)}, and nnU-Net trains on 0, 1, 2 and so on")
        return labels, ()
    regions = {name: values for name, values in parts.items() if set(values) != {0}}
    if len(dataset.regions_class_order) != len(regions):
        given, names = dataset.regions_class_order, ", ".join(regions)
        raise damaged(where, f": regions_class_order {given} must have one value for each of {names}")
    labels = {0: "background"}
    for value, (name, values) in zip(dataset.regions_class_order, regions.items(), strict=True):
        # A voxel of this value is in this region and in none that is drawn over it.
        labels[value] = name if values == (value,) else f"rest of {name}"
    order = sorted(labels)
    return labels, tuple(order.index(value) for value in dataset.regions_class_order)


def _preparation(plans: Plans, configuration: _Configuration, num_channels: int, where: str) -> NnunetPreparation:
    channels = normalizations(plans, configuration, num_channels, where)
    image, logits = configuration.resampling_fn_data_kwargs, configuration.resampling_fn_probabilities_kwargs
    # nnU-Net reads arrays as (z, y, x).
    x, y, z = (2 - axis for axis in plans.transpose_forward)
    return NnunetPreparation(
        axes=(x, y, z),
        is_reoriented=plans.image_reader_writer in _TURNING_READERS,
        spacing_mm=configuration.spacing,
        channels=channels,
        interpolation=Interpolation(
            order=image.order,
            image_order_thick=image.order_z,
            logits_order_thick=logits.order_z,
            image_in_planes=image.force_separate_z,
            logits_in_planes=logits.force_separate_z,
        ),
    )


def _network(
    path: Path, checkpoint: _Checkpoint, configuration: Mapping[str, Any], spec: PredictionSpec, where: str
) -> torch.nn.Module:
    described = configuration.get("architecture") or _earlier_architecture(configuration, where)
    if not isinstance(described, Mapping) or not isinstance(described.get("arch_kwargs", {}), Mapping):
        raise damaged(where, f": the architecture is {shortened(described)}, not keys and values")
    name = str(described.get("network_class_name"))
    if name not in NETWORKS:
        raise InputError(
            f"infer: {where} has the network {name}; only PlainConvUNet and ResidualEncoderUNet are supported: predict "
            "with nnU-Net itself"
        )
    plan = parse_keys(Architecture, described.get("arch_kwargs", {}), where)
    divisor = tuple(math.prod(strides) for strides in zip(*plan.strides, strict=True))
    if any(n % d for n, d in zip(spec.window.shape_voxel, divisor, strict=True)):
        shape = spec.window.shape_voxel
        raise damaged(where, f": patch_size {shape} is not a multiple of {divisor}, which its strides need")
    return network_with(
        partial(PlannedUNet, plan, num_channels=len(spec.channels), num_classes=spec.num_outputs),
        _weights(checkpoint),
        path,
        hint=f"its trainer, {checkpoint.trainer_name}, may have changed the network: predict with nnU-Net itself",
    )


def _earlier_architecture(configuration: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What plans of nnU-Net before 2.3 imply."""
    try:
        convolutions = configuration["n_conv_per_stage_encoder"]
        if not isinstance(convolutions, list) or len(convolutions) > MOST_LEVELS:
            found = shortened(convolutions)
            raise damaged(where, f": n_conv_per_stage_encoder is {found}, not a list of at most {MOST_LEVELS} numbers")
        base, most = (int(configuration[key]) for key in ("UNet_base_num_features", "unet_max_num_features"))
        name = configuration["UNet_class_name"]
        arguments = {
            "n_stages": len(convolutions),
            "features_per_stage": [min(base * 2**level, most) for level in range(len(convolutions))],
            "conv_op": "torch.nn.modules.conv.Conv3d",
            "kernel_sizes": configuration["conv_kernel_sizes"],
            "strides": configuration["pool_op_kernel_sizes"],
            "n_blocks_per_stage" if name == "ResidualEncoderUNet" else "n_conv_per_stage": convolutions,
            "n_conv_per_stage_decoder": configuration["n_conv_per_stage_decoder"],
            "conv_bias": True,
            "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
            "norm_op_kwargs": {"eps": 1e-5, "affine": True},
            "nonlin": "torch.nn.LeakyReLU",
        }
    except KeyError as error:
        raise damaged(where, f" has no key {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged(where, f" has a number of features that is none ({excerpt(error)})") from None
    return {"network_class_name": name, "arch_kwargs": arguments}


def _weights(checkpoint: _Checkpoint) -> dict[str, torch.Tensor]:
    """Each once: nnU-Net's modules have each layer under several names."""
    return {
        name.removeprefix("module."): tensor
        for name, tensor in checkpoint.network_weights.items()
        if ".all_modules." not in name and "decoder.encoder." not in name
    }


def _doubts(path: Path, checkpoint: _Checkpoint) -> tuple[str, ...]:
    doubts = []
    if path.name != _CHECKPOINTS[0]:
        doubts.append(f"{path.parent} holds no {_CHECKPOINTS[0]}: its training did not finish, and {path.name} is used")
    if not re.fullmatch(_TRAINERS, checkpoint.trainer_name):
        doubts.append(
            f"{path} was trained by {checkpoint.trainer_name}, which is none of the usual trainers of nnU-Net; if it "
            f"changes something in the network of {PLANS} that has no weights, predictions differ from nnU-Net's"
        )
    return tuple(doubts)
