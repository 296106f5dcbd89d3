"""`voxelocity export --to nnunet`: a run's network in a results folder that nnU-Net's predictor reads.

nnU-Net's arrays are (z, y, x), so kernels are turned; where DynUNet's kernels are narrower than those of nnU-Net's
decoder, zeros fill them. What nnU-Net has no counterpart for is refused; what it does otherwise is said.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from voxelocity.core.region import Index3
from voxelocity.core.requests.export import ExportRequest
from voxelocity.infer.models.foreign_files import read_json
from voxelocity.infer.models.kinds import PLANS
from voxelocity.infer.models.nnunet import open_nnunet
from voxelocity.infer.models.nnunet_plans import DATASET
from voxelocity.infer.models.run import load_model
from voxelocity.infer.models.spec import ModelSpec
from voxelocity_observe.core.errors import ExportError, InputError, OutputError

FORM = "nnunet"
_CONFIGURATION, _TRAINER, _NETWORK = "3d_fullres", "nnUNetTrainer", "PlainConvUNet"
_NAME, _CHECKPOINT = "Dataset000_Voxelocity", "checkpoint_final.pth"
_BUILDING = ".building"
# Sums in another order, of float32.
_CLOSE = 1e-4
_TURNED = (0, 1, 4, 3, 2)
Weights = dict[str, torch.Tensor]


def export_nnunet(request: ExportRequest, *, note: Callable[[str], None]) -> float:
    """Writes the results folder, after its network gave the logits of the run's; nothing is written if it does not.

    Args:
        request: which run, and where to.
        note: called with each thing that nnU-Net's predictor does otherwise.

    Returns:
        The largest difference of the logits on noise, relative to the largest logit.

    Raises:
        InputError: the run holds no model, nnU-Net has no counterpart for it, an option has no meaning here, or the
            folder cannot be written.
        ExportError: the networks give different logits.
    """
    if given := [name for name in ("cases", "device") if request.is_given(name)]:
        raise InputError(
            f"export: --{given[0]} has no effect with --to {FORM}, which compares noise on the CPU; leave it out"
        )
    network, spec = load_model(request.run, factory=request.factory)
    _check(spec, request.run)
    for what in _differences(spec):
        note(f"export: nnU-Net {what}")
    out, folder = request.out, request.out.with_name(f"{request.out.name}{_BUILDING}")
    if os.path.lexists(out) and not (request.overwrite and _is_ours(out)):
        raise OutputError(
            f"export: {out} is there{' and was not written by this command' if request.overwrite else ''}; "
            "--overwrite replaces an earlier export only: choose another folder with -o"
        )
    try:
        shutil.rmtree(folder, ignore_errors=True)
        fold = folder / "fold_0"
        fold.mkdir(parents=True)
        (folder / PLANS).write_text(json.dumps(_plans(spec), indent=4))
        (folder / DATASET).write_text(json.dumps(_description(spec), indent=4))
        torch.save(_checkpoint(network.state_dict(), spec), fold / _CHECKPOINT)
        difference = _compare(network, folder, spec)
        shutil.rmtree(out, ignore_errors=True)
        folder.rename(out)
    except OSError as error:
        raise OutputError(f"export: cannot write {out} ({error.strerror or error}); choose another with -o") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return difference


def _is_ours(folder: Path) -> bool:
    """Whether a folder is an earlier export, and not the results of a training of nnU-Net."""
    path = folder / PLANS
    return path.is_file() and read_json(path).get("dataset_name") == _NAME


def _check(spec: ModelSpec, run: Path) -> None:
    """Refuses what nnU-Net cannot say, all of it at once."""
    network, prepare = spec.network, spec.prepare
    values = list(spec.label_values)
    lacks = [
        (network.name != "dynunet", f"network {network.name}, where nnU-Net has its own, which is dynunet here"),
        (network.stem_stride != (1, 1, 1), f"network.stem_stride {network.stem_stride}, where it has no stem"),
        (network.num_res_units > 0, "residual blocks of DynUNet, whose shortcuts differ from nnU-Net's"),
        (prepare.spacing_mm == "keep", "data.prepare.spacing_mm keep, where it resamples to one spacing"),
        (bool(spec.region_order) and not spec.regions, "overlapping classes whose parts are not known"),
        (
            not spec.region_order and values != list(range(len(values))),
            f"labels {values}, where it has 0, 1, 2 and so on",
        ),
        (
            spec.ignore_value not in (None, max(values) + 1),
            f"the ignored value {spec.ignore_value}, where it has the one after the last label",
        ),
    ]
    if found := [what for is_lacking, what in lacks if is_lacking]:
        raise InputError(
            f"export: {run} cannot become a folder of nnU-Net, because it has {'; '.join(found)}. Train with "
            "--set network.name=dynunet --set network.stem_stride=[1,1,1] as far as that is the cause, or use "
            "`voxelocity predict`"
        )


def _differences(spec: ModelSpec) -> Iterator[str]:
    """What nnU-Net's predictor does otherwise than ours with this run."""
    if spec.prepare.crop != "nonzero":
        yield "crops scans to the voxels that are not zero; where they have a border of zeros, z-scores differ"
    elif spec.prepare.margin_voxel:
        yield f"crops scans without the margin of {spec.prepare.margin_voxel} voxels"
    yield "keeps the edges of a scan where it resamples, ours the center: up to half a voxel apart"
    if spec.prepare.intensity.mode == "zscore" and spec.prepare.intensity.nonzero_only:
        yield "counts zeros inside a scan in its z-score, ours none"
    if (spec.window.blend, spec.window.sigma_scale) != ("gaussian", 0.125):
        yield "weights windows by a Gaussian of 1/8 of their edge"
    if spec.window.swap_pairs:
        yield "cannot swap the sides of classes, so the left-right axis is not mirrored"
    if spec.window.overlap != 0.5:
        yield f"moves windows by half their size; give nnUNetv2_predict -step_size {1 - spec.window.overlap:g}"
    if spec.keep_largest:
        names = ", ".join(spec.class_names[index] for indices in spec.kept_components for index in indices)
        yield f"does not keep the largest components of {names}"


def _kernels(spec: ModelSpec) -> list[Index3]:
    """Of each level, both ways: DynUNet has those of the next coarser level on the way up."""
    strides = [(1, 1, 1), *spec.network.strides]
    down = [[3 if s > 1 or max(stride) == 1 else 1 for s in stride] for stride in strides]
    wide = [list(map(max, one, two)) for one, two in zip(down, [*down[1:], down[-1]], strict=True)]
    return [(x, y, z) for x, y, z in wide]


def _architecture(spec: ModelSpec) -> dict[str, Any]:
    network, num = spec.network, len(spec.network.widths)
    arguments = {
        "n_stages": num,
        "features_per_stage": list(network.widths),
        "conv_op": "torch.nn.modules.conv.Conv3d",
        "kernel_sizes": [list(reversed(kernel)) for kernel in _kernels(spec)],
        "strides": [[1, 1, 1], *(list(reversed(stride)) for stride in network.strides)],
        "n_conv_per_stage": [2] * num,
        "n_conv_per_stage_decoder": [2] * (num - 1),
        "conv_bias": False,
        "norm_op": f"torch.nn.modules.{network.norm}norm.{network.norm.capitalize()}Norm3d",
        "norm_op_kwargs": {"eps": 1e-5, "affine": True},
        "dropout_op": None,
        "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    }
    return {
        "network_class_name": f"dynamic_network_architectures.architectures.unet.{_NETWORK}",
        "arch_kwargs": arguments,
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    }


def _plans(spec: ModelSpec) -> dict[str, Any]:
    intensity = spec.prepare.intensity
    linear = {"order": 1, "order_z": 1, "force_separate_z": False}
    scheme = {"window": "CTNormalization", "zscore": "ZScoreNormalization", "none": "NoNormalization"}[intensity.mode]
    facts = {"percentile_00_5": intensity.low, "percentile_99_5": intensity.high}
    facts["mean"] = intensity.low if intensity.mean == "low" else intensity.mean
    facts["std"] = intensity.high - intensity.low if intensity.std == "width" else intensity.std
    facts |= {"min": intensity.low, "max": intensity.high, "median": facts["mean"]}
    assert spec.prepare.spacing_mm != "keep", "refused before"
    spacing = list(reversed(spec.prepare.spacing_mm))
    patch = list(reversed(spec.window.shape_voxel))
    configuration = {
        "data_identifier": f"nnUNetPlans_{_CONFIGURATION}",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": 2,
        "patch_size": patch,
        "median_image_size_in_voxels": patch,
        "spacing": spacing,
        "normalization_schemes": [scheme] * len(spec.channels),
        "use_mask_for_norm": [intensity.mode == "zscore" and intensity.nonzero_only] * len(spec.channels),
        **{f"resampling_fn_{what}": "resample_data_or_seg_to_shape" for what in ("data", "seg", "probabilities")},
        "resampling_fn_data_kwargs": {"is_seg": False, **linear},
        "resampling_fn_seg_kwargs": {"is_seg": True, **linear},
        "resampling_fn_probabilities_kwargs": {"is_seg": False, **linear},
        "architecture": _architecture(spec),
        "batch_dice": False,
    }
    return {
        "dataset_name": _NAME,
        "plans_name": "nnUNetPlans",
        "original_median_spacing_after_transp": spacing,
        "original_median_shape_after_transp": patch,
        "image_reader_writer": "SimpleITKIO" if spec.prepare.orientation == "keep" else "NibabelIOWithReorient",
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {str(n): facts for n in range(len(spec.channels))},
        "configurations": {_CONFIGURATION: configuration},
    }


def _description(spec: ModelSpec) -> dict[str, Any]:
    values = spec.label_values
    labels: dict[str, Any] = {"background": 0}
    found: dict[str, Any] = {}
    if spec.region_order:
        labels |= {name: [values[index] for index in parts] for name, parts in spec.regions.items()}
        found["regions_class_order"] = [values[index] for index in spec.region_order]
    else:
        labels |= {spec.labels[value]: value for value in values if value != 0}
    if spec.ignore_value is not None:
        labels["ignore"] = spec.ignore_value
    num = spec.trained_on.num_cases if spec.trained_on else 0
    return {
        "channel_names": {str(number): name for number, name in enumerate(spec.channels)},
        "labels": labels,
        "numTraining": num,
        "file_ending": ".nii.gz",
        **found,
    }


def _checkpoint(weights: Mapping[str, torch.Tensor], spec: ModelSpec) -> dict[str, Any]:
    mirrored = sorted(2 - axis for axis in spec.window.mirror_axes if not (axis == 0 and spec.window.swap_pairs))
    return {
        "network_weights": _with_doubles(_renamed(weights, spec)),
        "init_args": {"configuration": _CONFIGURATION, "fold": 0},
        "trainer_name": _TRAINER,
        "inference_allowed_mirroring_axes": tuple(mirrored) or None,
        "current_epoch": 0,
    }


def _renamed(weights: Mapping[str, torch.Tensor], spec: ModelSpec) -> Weights:
    """DynUNet's weights under the names of PlainConvUNet, turned and in its kernels."""
    kernels, last = _kernels(spec), len(spec.network.widths) - 1
    places = {
        "input_block": ("encoder.stages.0.0", kernels[0]),
        "bottleneck": (f"encoder.stages.{last}.0", kernels[last]),
    }
    for level in range(1, last):
        places[f"downsamples.{level - 1}"] = f"encoder.stages.{level}.0", kernels[level]
    for number in range(last):
        places[f"upsamples.{number}.conv_block"] = f"decoder.stages.{number}", kernels[last - 1 - number]
    found: Weights = {}
    for block, (place, kernel) in places.items():
        for number in (1, 2):
            conv = weights[f"{block}.conv{number}.conv.weight"]
            found[f"{place}.convs.{number - 1}.conv.weight"] = _widened(conv, kernel).permute(_TURNED)
            norm = f"{block}.norm{number}."
            names = [name.removeprefix(norm) for name in weights if name.startswith(norm)]
            found |= {f"{place}.convs.{number - 1}.norm.{name}": weights[f"{norm}{name}"] for name in names}
    for number in range(last):
        up = weights[f"upsamples.{number}.transp_conv.conv.weight"]
        found[f"decoder.transpconvs.{number}.weight"] = up.permute(_TURNED)
    head = {part: weights[f"output_block.conv.conv.{part}"] for part in ("weight", "bias")}
    for number in range(last):
        # Those of coarser levels serve training alone.
        width = spec.network.widths[last - 1 - number]
        is_used = number == last - 1
        weight = head["weight"] if is_used else head["weight"].new_zeros((len(head["weight"]), width, 1, 1, 1))
        found[f"decoder.seg_layers.{number}.weight"] = weight
        found[f"decoder.seg_layers.{number}.bias"] = head["bias"] if is_used else torch.zeros_like(head["bias"])
    return {
        name: tensor.float().contiguous() if tensor.is_floating_point() else tensor for name, tensor in found.items()
    }


def _widened(weight: torch.Tensor, kernel: Sequence[int]) -> torch.Tensor:
    """A kernel of 1 or 3 voxels along each axis in the middle of one that is as wide or wider."""
    pads = [(k - n) // 2 for k, n in zip(kernel, weight.shape[2:], strict=True)]
    return torch.nn.functional.pad(weight, [pad for n in reversed(pads) for pad in (n, n)])


def _with_doubles(weights: Weights) -> Weights:
    """Also under the other names that nnU-Net's modules give the same weights."""
    again = dict(weights)
    for part, number in ((".conv.", 0), (".norm.", 1)):
        again |= {
            name.replace(part, f".all_modules.{number}."): tensor for name, tensor in weights.items() if part in name
        }
    inside = {f"decoder.{name}": tensor for name, tensor in again.items() if name.startswith("encoder.")}
    return {**again, **inside}


def _compare(network: torch.nn.Module, folder: Path, spec: ModelSpec) -> float:
    """The largest difference between the logits of both on noise.

    Raises:
        ExportError: it is more than rounding.
    """
    shape = (1, len(spec.channels), *spec.window.shape_voxel)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    written = open_nnunet(folder).network
    with torch.no_grad():
        logits = network.float()(noise)
        other = written(noise.permute(_TURNED).contiguous()).permute(_TURNED)
    difference = float((logits - other).abs().max() / logits.abs().max().clamp_min(1e-12))
    if not difference <= _CLOSE:
        raise ExportError(
            f"export: the logits of the folder for nnU-Net differ from the run's by {difference:.2g} of the largest "
            "logit, so nothing was written; predict with `voxelocity predict`, and please report this"
        )
    return difference
