"""What the MONAI script is given, made from a plan, so that all sides train the same network on the same patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from voxelocity.core.volume import VolumeRef
from voxelocity.data.augment import EFFECTS, AugmentConfig
from voxelocity.data.prepare import IntensityConfig
from voxelocity.planning import Planned
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.host import cpu_budget

Recipe = Literal["plain", "fast"]

_PASSED_ON = frozenset(
    (
        *("flip_probability", "affine_probability", "rotation_degrees", "scale_range", "noise_probability"),
        *("intensity_scale_probability", "intensity_shift_probability", "gamma_probability", "gamma_range", "engine"),
    )
)
"""Keys of `data.augment` that the script follows whatever their values are."""
_FOLLOWED: Mapping[str, Callable[[AugmentConfig], bool]] = {
    "swap_pairs": lambda augment: not augment.swap_pairs or augment.flip_probability[0] == 0.0,
    "rotation_share": lambda augment: augment.rotation_share == 1.0,
    "scale_share": lambda augment: augment.scale_share == 1.0,
    "noise_std_range": lambda augment: augment.noise_std_range[0] == 0.0,
    "intensity_scale_range": lambda augment: abs(sum(augment.intensity_scale_range) - 2.0) <= 1e-9,
    "intensity_shift_range": lambda augment: abs(sum(augment.intensity_shift_range)) <= 1e-9,
    "gamma_keeps": lambda augment: augment.gamma_keeps == "range",
}
"""Those that it follows under a condition. Of others, it has only the default, and no effect whose probability is not
above: an effect or a key that is forgotten here is refused."""

LIMITS: dict[str, Any] = {
    # nnU-Net adds these on a GPU; MONAI's script has no counterpart.
    **{
        f"data.augment.{effect.probability}": 0.0
        for effect in EFFECTS
        if effect.is_in_nnunet and effect.probability not in _PASSED_ON
    },
    "data.augment.gamma_keeps": "range",
    # All sides validate alike: windows as MONAI has them.
    "window.overlap": 0.25,
    "window.mirror_axes": [],
}
"""Keys of the plan, set so that the script can follow it."""

PEER_KEYS: Mapping[str, Any] = {
    "network.stem_stride": [1, 1, 1],
    "optimizer.name": "adamw",
    # The best of 1e-3 to 8e-3 on three of four tasks in a minute, and no worse on the fourth (docs/log).
    "optimizer.learning_rate": 8e-3,
    "optimizer.average_decay": 0.0,
    "data.augment.ramp_epochs": 0,
}
"""Of the peers' plan alone: nnU-Net's network, AdamW. Ours has what its rules choose unless sides are to be equal."""


def script_job(
    planned: Planned, *, recipe: Recipe, target_dice: float, budget_s: float, epochs_per_validation: int
) -> dict[str, Any]:
    """The settings of `monai_script`, as plain data, which train what the plan says on data got by this recipe.

    The script stops at the target, 0 for none, or after the budget, by which the learning rate has fallen as in the
    plan. With 0 epochs per validation it never validates.

    Raises:
        ConfigError: the plan has keys without a counterpart in the script.
    """
    _check(planned)
    plan, split = planned.plan, planned.cases.split(planned.fold)
    # In threads, MONAI's loader may return one channel of a case whose channels are several files (MONAI 1.6.1).
    has_files = len(planned.cases.refs[0].images) > 1
    return {
        "recipe": recipe,
        "training": _files(split.training),
        "held_out": _files(split.validation),
        "num_classes": len(planned.cases.labels),
        "target_dice": target_dice,
        "budget_s": budget_s,
        "seed": plan.seed,
        "spacing_mm": None if plan.data.prepare.spacing_mm == "keep" else list(plan.data.prepare.spacing_mm),
        "window": _window(plan.data.prepare.intensity),
        "crops_foreground": plan.data.prepare.crop != "none",
        "patch_voxel": list(plan.data.patch.shape_voxel),
        "images_per_batch": max(1, plan.data.batch_size // plan.data.patch.draws_per_case),
        "patches_per_image": plan.data.patch.draws_per_case,
        "foreground_share": plan.data.patch.foreground_share,
        **_augmentation(plan.data.augment),
        "network": plan.network.name,
        "widths": list(plan.network.widths),
        "strides": [list(stride) for stride in plan.network.strides],
        "num_res_units": plan.network.num_res_units,
        "include_background": plan.loss.include_background,
        "regions": [list(values) for values in planned.cases.regions.values()],
        "loss": plan.loss.name,
        "optimizer": plan.optimizer.name,
        "learning_rate": plan.optimizer.learning_rate,
        "warmup_share": plan.schedule.warmup_share,
        "decay": plan.schedule.decay,
        "weight_decay": plan.optimizer.weight_decay,
        "second_momentum": plan.optimizer.second_momentum,
        "clip_norm": plan.optimizer.clip_norm,
        "precision": plan.precision.compute,
        # On CUDA torch's instance norm leaves that layout, and each convolution after it would convert back.
        "channels_last": plan.precision.channels_last and planned.machine.torch_device.type == "cpu",
        "window_overlap": plan.window.overlap,
        "epochs_per_validation": epochs_per_validation,
        # Without worker processes every core computes; `ScriptSettings.num_threads` says why it is one with workers.
        "num_threads": cpu_budget() if recipe == "fast" else 1,
        # The fast recipe's fill its cache, once.
        "num_workers": (1 if has_files else max(2, cpu_budget())) if recipe == "fast" else 2,
    }


def _augmentation(augment: AugmentConfig) -> dict[str, Any]:
    return {
        "flip_probability": list(augment.flip_probability),
        "affine_probability": augment.affine_probability,
        "rotate_degrees": list(augment.rotation_degrees),
        "zoom": list(augment.scale_range),
        "factor_probability": augment.intensity_scale_probability,
        "factor": augment.intensity_scale_range[1] - 1.0,
        "offset_probability": augment.intensity_shift_probability,
        "offset": augment.intensity_shift_range[1],
        "noise_probability": augment.noise_probability,
        "noise_std": augment.noise_std_range[1],
        "gamma_probability": augment.gamma_probability,
        "gamma": list(augment.gamma_range),
    }


def _check(planned: Planned) -> None:
    plan = planned.plan
    wrong = {
        "data.prepare.intensity.mode": plan.data.prepare.intensity.mode == "none",
        "precision.compute": plan.precision.compute == "float16",
        "network.name": plan.network.name not in ("unet", "dynunet", "segresnet"),
        "network.stem_stride": plan.network.stem_stride != (1, 1, 1),
        "network.norm": plan.network.norm != "instance",
        "network.dropout": plan.network.dropout > 0.0,
        "data.patch.growth": bool(plan.data.patch.growth),
        "loss.name": plan.loss.name not in ("dice_ce", *(("dice_focal",) if planned.cases.regions else ())),
        "loss.boundary_weight": plan.loss.boundary_weight > 0.0,
        "optimizer.name": plan.optimizer.name not in ("adamw", "novograd"),
        "schedule.decay": plan.schedule.decay not in ("cosine", "constant"),
        **{f"data.augment.{key}": True for key in _unlike(plan.data.augment)},
        "window.mirror_axes": bool(plan.window.mirror_axes),
    }
    named = [key for key, is_wrong in wrong.items() if is_wrong]
    if named:
        raise ConfigError(
            f"bench: the MONAI script has no counterpart for the plan's {', '.join(named)}, so the sides would train "
            "differently; leave these keys to the rules"
        )


def _unlike(augment: AugmentConfig) -> list[str]:
    """Keys by which patches are changed in ways, or by draws, that the script does not have."""
    made = [effect for effect in EFFECTS if effect.is_on(augment)]
    has = [effect for effect in made if effect.probability in _PASSED_ON]
    # Keys of an effect that is never made do not matter.
    keys = {key for effect in EFFECTS for key in (effect.probability, *effect.keys)}
    checked = AugmentConfig.model_fields.keys() - keys | {key for effect in has for key in effect.keys}
    return [
        *(effect.probability for effect in made if effect not in has),
        *(key for key in sorted(checked) if not _follows(key, augment)),
    ]


def _follows(key: str, augment: AugmentConfig) -> bool:
    if key in _FOLLOWED:
        return _FOLLOWED[key](augment)
    return key in _PASSED_ON or getattr(augment, key) == AugmentConfig.model_fields[key].default


def _window(intensity: IntensityConfig) -> list[float] | None:
    if intensity.mode == "zscore":
        return None
    mean = intensity.low if intensity.mean == "low" else intensity.mean
    std = intensity.high - intensity.low if intensity.std == "width" else intensity.std
    return [intensity.low, intensity.high, mean, std]


def _files(refs: Sequence[VolumeRef]) -> list[dict[str, Any]]:
    """Of each labeled case, the image's file, or a list of one a channel, and the label's."""
    return [
        {"image": images[0] if len(images) == 1 else images, "label": str(ref.label)}
        for ref in refs
        if ref.label is not None
        for images in [[str(path) for path in ref.images]]
    ]
