"""A results folder of nnU-Net v2: `plans.json`, `dataset.json` and a checkpoint for each fold, all read as data.

What its predictor does is described by `PredictionSpec` and `NnunetPreparation`; nnU-Net need not be installed.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict

from voxelocity.core.contracts import DeterministicStage
from voxelocity.infer.model import Model, PredictionSpec
from voxelocity.infer.models.ensemble import mean_of
from voxelocity.infer.models.foreign_files import network_with, read_checkpoint, read_json
from voxelocity.infer.models.kinds import PLANS, is_nnunet, nnunet_results
from voxelocity.infer.models.nnunet_cascade import CascadePreparation
from voxelocity.infer.models.nnunet_plans import (
    DATASET,
    Configuration,
    DatasetKeys,
    KnownKeys,
    Plans,
    ResampleLabels,
    damaged,
    inherited_keys,
    normalizations,
    parse_keys,
)
from voxelocity.infer.models.nnunet_postprocessing import read_postprocessing
from voxelocity.infer.models.nnunet_prepare import Interpolation, NnunetPreparation
from voxelocity.step.nnunet_network import MOST_LEVELS, NETWORKS, Architecture, PlannedUNet
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import excerpt, shortened

# nnU-Net trains five.
_MOST_FOLDS = 50
CHECKPOINTS = ("checkpoint_final.pth", "checkpoint_best.pth")
"""Of a fold, the first that it has is used."""
_TURNING_READERS = ("NibabelIOWithReorient", "SimpleITKIOWithReorient")
# nnU-Net's own trainers, and our forms of them, that train the network of the plans.
_TRAINERS = (
    r"nnUNetTrainer(Voxelocity(Fast)?)?(_?(\d+ep(ochs?)?|NoMirroring|onlyMirror01|NoDA|DA5(Seg)?(ord0)?|DA(Seg)?Ord0|"
    r"noDummy2DDA|(Vanilla)?Ada[mn](\den\d)?|CosAnneal|warmup|(Dice)?(CE|TopK10|Topk10)?Loss(LS01|_noSmooth)?|"
    r"NoDeepSupervision|probabilisticOversampling(_\d+)?))*"
)
# torch convolves a single window in a slower way: 0.9 s for a hippocampus, 0.2 s in pairs. Of small planes, more come
# in one pass.
_WINDOWS, _MOST_PLANES, _PLANE_VOXELS = 2, 32, 1 << 18
_KERNEL_AXES = 4


class _ResampleLogits(KnownKeys):
    order: Literal[1]
    order_z: Literal[0, 1] = 0
    force_separate_z: bool | None = False


class _Configuration(Configuration):
    resampling_fn_probabilities: Literal["resample_data_or_seg_to_shape"]
    resampling_fn_probabilities_kwargs: _ResampleLogits

    @property
    def num_missing(self) -> int:
        """1 for a 2-D network, whose windows have a single voxel along the first axis; else 0."""
        return 3 - len(self.patch_size)


class _SecondConfiguration(KnownKeys):
    """What the second network of a cascade has in addition."""

    previous_stage: str
    resampling_fn_seg: Literal["resample_data_or_seg_to_shape"]
    resampling_fn_seg_kwargs: ResampleLabels


class _InitArguments(KnownKeys):
    configuration: str


class _Checkpoint(KnownKeys):
    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)

    network_weights: dict[str, torch.Tensor]
    init_args: _InitArguments
    trainer_name: str
    inference_allowed_mirroring_axes: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _Results:
    """What the folds of a results folder share.

    Attributes:
        folder: the results folder.
        plans: its plans.
        dataset: its data set.
        earlier: opens the first network of a cascade, by the name of its configuration.
    """

    folder: Path
    plans: Plans
    dataset: DatasetKeys
    earlier: Callable[[str], Model]


def open_nnunet(path: Path) -> Model:
    """The model in a results folder, the mean of its folds if there are several; or that of one fold.

    As in nnU-Net, the fold "all" is used only if it is the only one. A checkpoint that is not the final one is used
    only if there is no other. The second network of a cascade brings the first one along, from the folder next to it:
    the same fold of it, or all of its folds.

    Args:
        path: `.../TRAINER__PLANS__CONFIGURATION`, or a folder `fold_N` in it.

    Raises:
        InputError: a file is missing or damaged, or the model needs something that Voxelocity does not do as nnU-Net
            does it.
    """
    folder = nnunet_results(path)
    fold = path.name if path != folder else ""

    @functools.cache
    def earlier(configuration: str) -> Model:
        return _open_earlier(folder, configuration, fold)

    model, folds = _open_folds(folder, fold, earlier)
    keep_largest, doubts = read_postprocessing(folder, [fold.name for fold in folds], model.spec)
    spec = model.spec.model_copy(update={"keep_largest": keep_largest})
    return replace(model, spec=spec, doubts=(*model.doubts, *doubts))


def _open_folds(folder: Path, fold: str, earlier: Callable[[str], Model]) -> tuple[Model, list[Path]]:
    """The mean of the folds, or the named one, and the folders of those that are used."""
    results = _Results(
        folder=folder,
        plans=parse_keys(Plans, read_json(folder / PLANS), folder / PLANS),
        dataset=parse_keys(DatasetKeys, read_json(folder / DATASET), folder / DATASET),
        earlier=earlier,
    )
    folds = [folder / fold] if fold else _folds_of(folder)
    models = [_open_fold(path, results) for path in folds]
    return models[0] if len(models) == 1 else mean_of(models), folds


def _open_earlier(second: Path, configuration: str, fold: str) -> Model:
    """The first network of a cascade."""
    # "." has no name.
    second = Path(os.path.abspath(second))
    folder = second.with_name(f"{second.name.rpartition('__')[0]}__{configuration}")
    if not is_nnunet(folder):
        raise InputError(
            f"infer: {second} is the second network of a cascade, which takes the classes of the first; {folder}, the "
            f"results folder of {configuration}, is missing: copy it there"
        )

    def refuse(name: str) -> Model:
        raise damaged(folder / PLANS, f": {configuration} is itself the second network of a cascade, after {name}")

    return _open_folds(folder, fold, refuse)[0]


def _folds_of(folder: Path) -> list[Path]:
    folds = sorted(path for path in folder.glob("fold_*") if any((path / name).is_file() for name in CHECKPOINTS))
    if not folds:
        raise InputError(
            f"infer: {folder} holds no trained fold: no fold_*/{CHECKPOINTS[0]} and no fold_*/{CHECKPOINTS[1]}; "
            "copy the folder again, or train it with nnUNetv2_train"
        )
    if len(folds) > _MOST_FOLDS:
        raise InputError(
            f"infer: {folder} holds {len(folds)} trained folds, more than the {_MOST_FOLDS} that are averaged; name one"
        )
    return [fold for fold in folds if fold.name != "fold_all"] or folds


def _open_fold(fold: Path, results: _Results) -> Model:
    path = next((path for name in CHECKPOINTS if (path := fold / name).is_file()), None)
    if path is None:
        raise InputError(f"infer: {fold} holds neither {' nor '.join(CHECKPOINTS)}; name a fold that is trained")
    checkpoint = parse_keys(_Checkpoint, read_checkpoint(path), path)
    where = f"{fold.parent / PLANS}: {checkpoint.init_args.configuration}"
    values = inherited_keys(results.plans, checkpoint.init_args.configuration, where)
    configuration = parse_keys(_Configuration, values, where)
    if len(configuration.spacing) != len(configuration.patch_size):
        raise damaged(where, f": patch_size {configuration.patch_size} and spacing {configuration.spacing} differ")
    spec = _spec(results, configuration, checkpoint.inference_allowed_mirroring_axes or (), fold.parent)
    stage = _preparation(results.plans, configuration, len(spec.channels), where)
    preparation: DeterministicStage = stage
    doubts = _doubts(path, checkpoint)
    if values.get("previous_stage"):
        preparation, more = _cascade(results, stage, values, spec, where)
        doubts += more
    num_channels = len(spec.channels)
    if isinstance(preparation, CascadePreparation):
        num_channels += len(preparation.values)
    return Model(
        folder=fold,
        network=_network(path, checkpoint, values, configuration.patch_size, (num_channels, spec.num_outputs), where),
        spec=spec,
        preparation=preparation,
        doubts=doubts,
    )


def _spec(
    results: _Results, configuration: _Configuration, mirror_axes: tuple[int, ...], where: Path
) -> PredictionSpec:
    dataset = results.dataset
    labels, region_order, regions = _labels(dataset, where / DATASET)
    missing, num_planes = configuration.num_missing, _PLANE_VOXELS // max(1, math.prod(configuration.patch_size))
    return parse_keys(
        PredictionSpec,
        {
            # By number: "10" comes after "9".
            "channels": [str(dataset.channels[key]) for key in sorted(sorted(dataset.channels), key=len)],
            "labels": labels,
            "region_order": region_order,
            "regions": regions,
            "restored": "logits",
            "window": {
                "shape_voxel": (*(1,) * missing, *configuration.patch_size),
                "batch_size": max(_WINDOWS, min(num_planes, _MOST_PLANES)) if missing else _WINDOWS,
                "spread": "even",
                "blend": "nnunet",
                "mirror_axes": [axis + missing for axis in mirror_axes],
            },
            # nnU-Net's choice on a GPU; a CPU computes in float32.
            "precision": {"compute": "float16", "channels_last": True},
        },
        where,
    )


def _cascade(
    results: _Results, stage: NnunetPreparation, values: Mapping[str, Any], spec: PredictionSpec, where: str
) -> tuple[CascadePreparation, tuple[str, ...]]:
    """The preparation for a second network, and the doubts about the first."""
    keys = parse_keys(_SecondConfiguration, values, where)
    if keys.previous_stage not in results.plans.configurations or not re.fullmatch(r"[\w.-]+", keys.previous_stage):
        raise damaged(where, f": the plans have no configuration {shortened(keys.previous_stage)}, its previous_stage")
    earlier = results.earlier(keys.previous_stage)
    for what, first, second in (
        ("channels", earlier.spec.channels, spec.channels),
        ("labels", earlier.spec.labels, spec.labels),
    ):
        if first != second:
            raise damaged(where, f": its {what} are {second}, and those of {earlier.folder} are {first}")
    parts = (value for name, value in results.dataset.labels.items() if name != "ignore")
    found = {label for value in parts for label in ((value,) if isinstance(value, int) else value)}
    preparation = CascadePreparation(
        stage=stage,
        earlier=earlier,
        values=tuple(sorted(found - {0})),
        in_planes=keys.resampling_fn_seg_kwargs.force_separate_z,
    )
    return preparation, earlier.doubts


def _labels(dataset: DatasetKeys, where: Path) -> tuple[dict[int, str], tuple[int, ...], dict[str, tuple[int, ...]]]:
    """File value to class name, and `region_order` and `regions` of `PredictionSpec`."""
    parts = {
        name: (value,) if isinstance(value, int) else value
        for name, value in dataset.labels.items()
        if name != "ignore"
    }
    if all(len(values) == 1 for values in parts.values()):
        labels = {values[0]: name for name, values in parts.items()}
        if sorted(labels) != list(range(len(parts))):
            raise damaged(where, f": labels has the values {sorted(labels)}, and nnU-Net trains on 0, 1, 2 and so on")
        return labels, (), {}
    regions = {name: values for name, values in parts.items() if set(values) != {0}}
    if len(dataset.regions_class_order) != len(regions):
        given, names = dataset.regions_class_order, ", ".join(regions)
        raise damaged(where, f": regions_class_order {given} must have one value for each of {names}")
    labels = {0: "background"}
    for value, (name, values) in zip(dataset.regions_class_order, regions.items(), strict=True):
        # A voxel of this value is in this region and in none that is drawn over it.
        labels[value] = name if values == (value,) else f"rest of {name}"
    order, drawn = sorted(labels), dataset.regions_class_order
    members = {name: tuple(index for index, n in enumerate(order) if n in values) for name, values in regions.items()}
    # Else predictions have values that are not those of the labels.
    is_known = all(value in values for value, values in zip(drawn, regions.values(), strict=True))
    return labels, tuple(map(order.index, drawn)), members if is_known else {}


def _preparation(plans: Plans, configuration: _Configuration, num_channels: int, where: str) -> NnunetPreparation:
    channels = normalizations(plans, configuration, num_channels, where)
    image, logits = configuration.resampling_fn_data_kwargs, configuration.resampling_fn_probabilities_kwargs
    # nnU-Net reads arrays as (z, y, x).
    x, y, z = (2 - axis for axis in plans.transpose_forward)
    return NnunetPreparation(
        axes=(x, y, z),
        is_reoriented=plans.image_reader_writer in _TURNING_READERS,
        spacing_mm=_three(configuration.spacing),
        channels=channels,
        interpolation=Interpolation(
            order=image.order,
            image_order_thick=image.order_z,
            logits_order_thick=logits.order_z,
            image_in_planes=image.force_separate_z,
            logits_in_planes=logits.force_separate_z,
        ),
    )


def _three(spacing_mm: tuple[float, ...]) -> tuple[float | None, float, float]:
    """A network of planes keeps the distance of the slices."""
    *first, second, third = spacing_mm
    return (first[0] if first else None, second, third)


def _network(
    path: Path,
    checkpoint: _Checkpoint,
    configuration: Mapping[str, Any],
    shape: tuple[int, ...],
    num_ends: tuple[int, int],
    where: str,
) -> torch.nn.Module:
    """The network of a fold, for windows of this shape; `num_ends`: how many channels it takes and gives."""
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
    if len(shape) != plan.num_axes or any(n % d for n, d in zip(shape, divisor, strict=True)):
        raise damaged(where, f": patch_size {shape} is not a multiple of {divisor}, which its strides need")
    return network_with(
        partial(PlannedUNet, plan, num_channels=num_ends[0], num_classes=num_ends[1]),
        _weights(checkpoint, is_planar=plan.num_axes == 2),
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
        name, num_axes = configuration["UNet_class_name"], len(configuration["patch_size"])
        arguments = {
            "n_stages": len(convolutions),
            "features_per_stage": [min(base * 2**level, most) for level in range(len(convolutions))],
            "conv_op": f"torch.nn.modules.conv.Conv{num_axes}d",
            "kernel_sizes": configuration["conv_kernel_sizes"],
            "strides": configuration["pool_op_kernel_sizes"],
            "n_blocks_per_stage" if name == "ResidualEncoderUNet" else "n_conv_per_stage": convolutions,
            "n_conv_per_stage_decoder": configuration["n_conv_per_stage_decoder"],
            "conv_bias": True,
            "norm_op": f"torch.nn.modules.instancenorm.InstanceNorm{num_axes}d",
            "norm_op_kwargs": {"eps": 1e-5, "affine": True},
            "nonlin": "torch.nn.LeakyReLU",
        }
    except KeyError as error:
        raise damaged(where, f" has no key {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise damaged(where, f" has a number of features that is none ({excerpt(error)})") from None
    return {"network_class_name": name, "arch_kwargs": arguments}


def _weights(checkpoint: _Checkpoint, *, is_planar: bool) -> dict[str, torch.Tensor]:
    """Each once: nnU-Net's modules have each layer under several names. Those of planes get an axis."""
    return {
        name.removeprefix("module."): tensor.unsqueeze(2) if is_planar and tensor.dim() == _KERNEL_AXES else tensor
        for name, tensor in checkpoint.network_weights.items()
        if ".all_modules." not in name and "decoder.encoder." not in name
    }


def _doubts(path: Path, checkpoint: _Checkpoint) -> tuple[str, ...]:
    doubts = []
    if path.name != CHECKPOINTS[0]:
        doubts.append(f"{path.parent} holds no {CHECKPOINTS[0]}: its training did not finish, and {path.name} is used")
    if not re.fullmatch(_TRAINERS, checkpoint.trainer_name):
        doubts.append(
            f"{path} was trained by {checkpoint.trainer_name}, which is not a standard nnU-Net trainer; if it "
            f"changes the network of {PLANS} without adding weights, predictions differ from nnU-Net's"
        )
    return tuple(doubts)
