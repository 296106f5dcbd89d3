"""What sets the batch on the device in each of Auto3DSeg's templates, and the keys that say so.

segresnet and segresnet2d step on `num_crops_per_image` patches of one image, or on `batch_size` images where
`crop_mode` is not "ratio"; `num_images_per_batch` sets nothing once `batch_size` is filled in. Windows at once are
fixed to 1 unless `sliding_inferrer` says otherwise, whose `device` is where a prediction is put together.

dints and swinunetr step on `num_patches_per_iter` of the patches that `num_images_per_batch` images give; the latter
fills main memory alone. `num_sw_batch_size` and `sw_input_on_cpu` are of the validation.

All of them change these keys again when a training begins, unless `auto_scale_allowed` is off. None changes its
`learning_rate`, which was chosen for steps of its own size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from voxelocity.tuning.auto3dseg.specs import AlgorithmSpecs
from voxelocity.tuning.space import Knob, Settings, sizes
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import parse_yaml

PATCHES, WINDOWS, DATA_ON = "patches_per_step", "num_sw_batch_size", "validation_data_device"
"""What is searched; the first stands for what Auto3DSeg calls `num_images_per_batch`."""

PARAMETERS = "hyper_parameters.yaml"
SEGMENTERS = ("segresnet", "segresnet2d")
"""Templates whose training and validation steps are methods of a class; those of the others stand in a script."""

_NEEDED = {
    "segresnet": (
        "roi_size", "input_channels", "output_classes", "crop_mode", "batch_size", "num_epochs", "image_size",
        "resample_resolution", "data_list_file_path", "data_file_base_dir", "loss", "optimizer", "network",
    ),
    "dints": (
        "roi_size", "roi_size_valid", "input_channels", "output_classes", "num_images_per_batch", "num_crops_per_image",
        "num_patches_per_iter", "num_epochs", "num_epochs_per_validation", "overlap_ratio", "loss", "optimizer",
    ),
}  # fmt: skip
_NEEDED_BY_ALL_SCRIPTS = ("data_list_file_path", "data_file_base_dir")
# Of a training with more crops than this from each image, segresnet divides the epochs by it only.
_MOST_DIVIDED = 3
# With which power of the patches of a step the learning rate grows, and up to how many times as many that was measured
# (benchmarks/auto3dseg_curves.py). AdamW at 0.0002 needs the whole factor; SGD at 0.2 jumps with it. Not measured:
# swinunetr, whose rate is high for a transformer.
_RATE_POWER = {"segresnet": 1.0, "segresnet2d": 1.0, "dints": 0.5, "swinunetr": 0.5}
_MOST_SCALED = 8.0


def prefix(name: str) -> str:
    """What stands before the keys of a training in the template's parameters."""
    return "training#" if name == "dints" else ""


@dataclass(frozen=True, kw_only=True)
class OwnSettings:
    """What an algorithm would run with on this machine by itself, and how long. Plain data.

    Attributes:
        patches: on the device in a training step.
        windows: that the network takes at once in a validation.
        data_on: where a validation keeps its data: "cpu" or "gpu".
        patches_per_case: that a whole training draws from each of its cases.
        num_cases: that are trained on.
        num_validations: of a case, in a whole training.
        epoch_crops: patches of a case in an epoch.
        images_per_batch: that are loaded at once.
        epochs_per_validation: the fewest epochs of a training.
        crop_mode: of segresnet.
        learning_rate: for steps of `patches`; None if it stays at that for all others.
        fixed: keys that the template would set by itself when a training begins, which must stay once that is off.
    """

    patches: int
    windows: int
    data_on: str
    patches_per_case: int
    num_cases: int
    num_validations: int
    epoch_crops: int = 1
    images_per_batch: int = 1
    epochs_per_validation: int = 1
    crop_mode: str = "ratio"
    learning_rate: float | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_patches(self) -> int:
        """That a whole training draws."""
        return self.num_cases * self.patches_per_case


def read_yaml(file: Path) -> Any:
    """The values in a configuration file.

    Raises:
        InputError: it cannot be read, or is not YAML.
    """
    try:
        return parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"tune: cannot read {file} ({error}); generate the folder again with BundleGen") from None


def read_parameters(folder: Path, name: str) -> dict[str, Any]:
    """The filled parameters of an algorithm.

    Raises:
        InputError: they cannot be read, or lack something that the training needs.
    """
    file = folder / "configs" / PARAMETERS
    found = read_yaml(file)
    inside = found.get("training") if name == "dints" and isinstance(found, dict) else found
    top = () if name in SEGMENTERS else _NEEDED_BY_ALL_SCRIPTS
    needed = _NEEDED["segresnet" if name in SEGMENTERS else "dints"]
    for key, values in [*((key, found) for key in top), *((key, inside) for key in needed)]:
        if not isinstance(values, dict) or values.get(key) is None:
            shown = key if key in top else f"{prefix(name)}{key}"
            raise InputError(
                f"tune: {file} has no value for '{shown}', which a training of {name} needs; the template differs from "
                "those of MONAI 1.6, or was not filled: generate the folder again with BundleGen"
            )
    parameters: dict[str, Any] = found
    return parameters


def named_rate(name: str, parameters: Mapping[str, Any]) -> float | None:
    """The learning rate that a key of the parameters sets; None if none does, or if the optimizer takes another one."""
    inner = parameters["training"] if name == "dints" else parameters
    rate, optimizer = inner.get("learning_rate"), inner["optimizer"]
    is_taken = isinstance(optimizer, Mapping) and optimizer.get("lr") == f"@{prefix(name)}learning_rate"
    return float(rate) if is_taken and isinstance(rate, (int, float)) else None


def algorithm_knobs(specs: AlgorithmSpecs, own: OwnSettings, *, has_gpu: bool) -> tuple[Knob, ...]:
    """What is searched, beginning at the algorithm's own settings or, where a range leaves them out, at the nearest."""

    def sized(name: str, limits: tuple[int, int], default: int) -> Knob:
        nearest = min(max(default, limits[0]), limits[1])
        return Knob(name=name, choices=sizes(*limits, default=nearest), default=nearest, grows_memory=True)

    asked = specs.validation_data_device
    places = ("gpu", "cpu") if asked == "auto" and has_gpu else ("cpu",) if asked == "auto" else (asked,)
    return (
        sized(PATCHES, specs.range_num_images_per_batch, own.patches),
        sized(WINDOWS, specs.range_num_sw_batch_size, own.windows),
        Knob(name=DATA_ON, choices=places, default=own.data_on if own.data_on in places else places[0]),
    )


def written_keys(name: str, own: OwnSettings, settings: Settings, *, has_gpu: bool) -> dict[str, Any]:
    """The keys of the parameters with which a training runs at these settings, and draws as many patches as before.

    A training in larger steps has fewer of them, so its learning rate grows with the patches of a step: in proportion
    (Goyal et al., "Accurate, large minibatch SGD", 2017) or with their square root (Krizhevsky, "One weird trick",
    2014).
    """
    patches = settings[PATCHES]
    factor = min(patches / own.patches, _MOST_SCALED) ** _RATE_POWER[name]
    rate = own.learning_rate
    scaled = {} if rate is None or factor == 1.0 else {"learning_rate": float(f"{rate * factor:.6g}")}
    if name in SEGMENTERS:
        from_one = own.crop_mode == "ratio"
        crops = patches if from_one else 1
        inferer = {
            "_target_": "SlidingWindowInfererAdapt",
            "roi_size": "@roi_size",
            "sw_batch_size": settings[WINDOWS],
            "overlap": [0.625, 0.625, 0] if name == "segresnet2d" else 0.625,
            "mode": "gaussian",
            "cache_roi_weight_map": name == "segresnet",
            "progress": False,
            **({"device": "cpu"} if settings[DATA_ON] == "cpu" and has_gpu else {}),
        }
        return {
            **own.fixed,
            **scaled,
            "auto_scale_allowed": False,
            "batch_size": 1 if from_one else patches,
            "num_crops_per_image": crops,
            "num_steps_per_image": 1,
            "num_epochs": max(1, round(own.patches_per_case / crops)) * min(_MOST_DIVIDED, crops),
            "sliding_inferrer": inferer,
        }
    # A training steps as often as whole batches fit into what is loaded at once, so one must.
    crops = max(round(own.epoch_crops * patches / own.patches), math.ceil(patches / own.images_per_batch), 1)
    keys = {
        **scaled,
        "auto_scale_allowed": False,
        "num_patches_per_iter": patches,
        "num_crops_per_image": crops,
        "num_epochs": max(own.epochs_per_validation, round(own.patches_per_case / crops)),
        "num_sw_batch_size": settings[WINDOWS],
        "sw_input_on_cpu": settings[DATA_ON] == "cpu",
    }
    return {f"{prefix(name)}{key}": value for key, value in keys.items()}
