"""The rules, in the order of a voxel's path through them. Each settles a few keys and says why.

If a rule follows a publication, its docstring cites it; if it follows our own measurement, its reason cites that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxelocity.core.laterality import find_sides, swapped_classes
from voxelocity.data.augment import EFFECTS
from voxelocity.planning.cache_rule import prepared_bytes, resident_bytes, settle_cache, settle_device_cache
from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.patch_fit import coarsen
from voxelocity.planning.patch_rule import CPU_PATCH_VOXELS, settle_patch_and_network, windows_at_once
from voxelocity.planning.precision_rule import planned_compute, settle_precision
from voxelocity.planning.size_rule import LONG_BUDGET_S, MOST_BATCH, is_to_target, planned_spacing, sized_s, step_size
from voxelocity.planning.start_rule import rate_reason, settle_spacing, settle_start, settle_start_patch, spacing_text
from voxelocity.planning.step_forecast import ENOUGH_STEPS
from voxelocity.step import LOSSES, OPTIMIZERS, OptimizerConfig
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.quantities import count_text, listed

# On a GPU, Muon trains below this time budget and up to this many steps: where there are many, fewer are no gain.
# Runs on a CPU had as many.
_MUON_BELOW_S, _MUON_MOST_STEPS = 120.0, 2_700
_MOST_RATE_FACTOR = 2.0
# The square root of a validation's seconds over twice those of the training: 1 s and 20 s give 0.16.
_TARGET_VALIDATION_SHARE = 0.15

# nnU-Net resamples for a low-resolution network if the patch covers less than a quarter of the median volume; we let a
# patch cover at least one part in this many, or training would not visit most of the volume. For GPUs: `StepSize`.
_CPU_MAX_PATCHES = 24
_MOST_FEED_THREADS = 8
# Where cases are resident, a thread only draws numbers and launches kernels: one makes a batch while the other waits
# for its own on the device.
_RESIDENT_FEED_THREADS = 2


def settle_orientation_and_spacing(facts: PlanFacts) -> None:
    """Median spacing as in nnU-Net (Isensee et al. 2021, 10.1038/s41592-020-01008-z), made coarser if needed."""
    facts.settle(
        "data.prepare.orientation",
        "RAS",
        "one orientation for all cases: x runs to the right, y to the front, z to the head",
    )
    low, median, high = (
        np.array(s) for s in (facts.data.spacing_mm.low, facts.data.spacing_mm.median, facts.data.spacing_mm.high)
    )
    if np.allclose(low, high, rtol=1e-3):
        reason = f"every case has a spacing of {spacing_text(median)}; nothing is resampled"
    else:
        reason = f"median of the spacings {spacing_text(low)} to {spacing_text(high)}"
    spacing = median
    shape = np.array(facts.data.extent_mm.median) / spacing
    if facts.machine.device == "cpu":
        max_patches, wanted = _CPU_MAX_PATCHES, _CPU_MAX_PATCHES * CPU_PATCH_VOXELS
        spacing = coarsen(spacing, shape, wanted) if shape.prod() > wanted else median
    else:
        size = step_size(facts)
        max_patches, spacing = size.max_patches, planned_spacing(facts, size)
    if not np.array_equal(spacing, median):
        reason += (
            f"; coarser, because the median case would have {shape.prod() / 1e6:.1f} million voxels, and a patch on "
            f"the {facts.machine.device_name} would cover less than 1/{max_patches} of it"
        )
        if facts.machine.device != "cpu" and size.has_stem:
            reason += f", and {ENOUGH_STEPS} steps in {sized_s(facts):.0f} s would cover too little"
    rounded = [round(float(s), 3) for s in spacing]
    settle_spacing(facts, rounded, reason)


def settle_intensity(facts: PlanFacts) -> None:
    """CT with a fixed window and global statistics, everything else case by case (nnU-Net).

    A foreground of one value gives no window.
    """
    first, channel = facts.data.intensity[0], facts.data.channels[0]
    low, high = _whole_if_wide(first.percentile_00_5, first.percentile_99_5)
    if facts.data.is_ct and low == high:
        mode = facts.settle(
            "data.prepare.intensity.mode",
            "zscore",
            f"the foreground of the sampled cases has one value ({low:g}), so there is no window to clip to: each "
            "case is scaled to mean 0, standard deviation 1",
        )
    elif facts.data.is_ct:
        mode = facts.settle(
            "data.prepare.intensity.mode",
            "window",
            f"{'' if facts.data.names_ct else 'air near -1000: these are '}CT numbers, which mean the same in every "
            f"case: clipped to the 0.5 and 99.5 percentiles of the foreground ({low:.0f} to {high:.0f}), then "
            f"normalized by its mean {first.mean:.0f} and standard deviation {first.std:.0f}",
        )
    else:
        spread = ", ".join(f"{part.lowest:.4g} to {part.highest:.4g}" for part in facts.data.intensity)
        mixed = facts.data.without_air
        # The name of a table's column, which does not say what the channel is.
        is_unnamed = facts.data.channels == ("image",)
        mode = facts.settle(
            "data.prepare.intensity.mode",
            "zscore",
            f"intensities ({spread}) are not comparable between cases: "
            "each channel of each case is scaled to mean 0, standard deviation 1"
            + (
                f"; {len(mixed)} of {facts.data.num_sampled} contain no air, unlike the others, such as {mixed[0]}"
                if mixed
                else ""
            )
            + ("; if they are CT numbers, name the channel CT (docs/data-sets.md)" if is_unnamed else ""),
        )
    if mode == "window":
        for name, value in {"low": low, "high": high, "mean": first.mean, "std": max(first.std, 1e-6)}.items():
            facts.settle(f"data.prepare.intensity.{name}", value, f"foreground of '{channel}' in the sampled cases")


def _whole_if_wide(low: float, high: float) -> tuple[float, float]:
    """Ends of a window as whole numbers, so that CT numbers stay integers in the cache."""
    return (float(round(low)), float(round(high))) if high - low >= 20.0 else (low, high)


def settle_crop_and_dtype(facts: PlanFacts) -> None:
    """Cropping to non-zero voxels if that saves a fifth; voxels kept in one or two bytes."""
    share = facts.data.crop_share
    crop = "nonzero" if share < 0.8 else "none"
    facts.settle(
        "data.prepare.crop",
        crop,
        f"the box of nonzero voxels contains {share:.0%} of a case (median of {facts.data.num_sampled})",
    )
    facts.settle(
        "data.prepare.dtype",
        "smallest",
        "integers stay unchanged, other values take two bytes and shift by at most 1/65,000 of a case's range; "
        f"all cases then take {prepared_bytes(facts) / 2**30:.2f} GiB",
    )


def settle_feed(facts: PlanFacts) -> None:
    """Threads that cut patches; on a CPU they share the cores with training."""
    facts.settle("data.feed.num_threads", *_feed_threads(facts), changes_results=False)
    facts.settle("data.feed.num_batches_ahead", 4, "compensates for slow cases", changes_results=False)


def _feed_threads(facts: PlanFacts) -> tuple[int, str]:
    machine = facts.machine
    cores = count_text(machine.num_cpus, "core")
    if machine.device == "cpu":
        return 1, f"{cores}, which the training needs"
    usual = max(1, min(_MOST_FEED_THREADS, machine.num_cpus - 1))
    data = facts.section("data")
    on_device = data.get("augment", {}).get("engine", "auto") in ("auto", "triton") and machine.has_triton
    # A tier that prepares cases again and again decodes in these threads.
    all_resident = data["cache"].get("device_max_bytes", 0) >= resident_bytes(facts) and data["cache"]["tier"] != "none"
    if not (on_device and all_resident and usual > _RESIDENT_FEED_THREADS):
        return usual, cores
    return _RESIDENT_FEED_THREADS, (
        "all cases are on the device, which also crops and augments the patches, so threads do little; more threads "
        "would compete for Python's lock with the training"
    )


def settle_length(facts: PlanFacts) -> None:
    """Steps or seconds of the run, and its seed."""
    on_cpu = facts.machine.device == "cpu"
    if facts.epochs:
        passes = count_text(facts.epochs, "pass", "passes")
        facts.settle("train.steps", facts.steps_of_epochs(), f"{passes} over the training cases: --epochs")
    elif facts.time_budget_s:
        facts.settle("train.steps", 0, f"as many as fit into {facts.time_budget_s:.0f} s{_forecast_text(facts)}")
    else:
        batch = int(facts.settled["data"]["batch_size"])
        # On several GPUs fewer, larger steps see as many patches.
        patches = 40 * facts.num_training / max(1.0, batch / MOST_BATCH)
        steps = int(np.clip(patches, 1_000, 4_000 if on_cpu else 40_000))
        facts.settle(
            "train.steps",
            steps,
            f"each of the {facts.num_training} training cases is used about "
            f"{steps * batch / facts.num_training:.0f} times; --time-budget limits the time instead"
            f"{_forecast_text(facts)}",
        )
    if not on_cpu and is_to_target(facts):
        facts.settle(
            "train.validation_share",
            _TARGET_VALIDATION_SHARE,
            "only a validation can detect the target: if one takes a second and the training 20 s, fewer validations "
            "would cost more time than they save",
        )
    elif facts.time_budget_s:
        facts.settle("train.validation_share", 0.01, "the budget is for training; a curve needs few validations")
    facts.settle("seed", facts.seed, "the default, or --seed")
    facts.settle("train.time_budget_s", facts.time_budget_s, "--time-budget" if facts.time_budget_s else "no limit")


def _forecast_text(facts: PlanFacts) -> str:
    """What the run is expected to get done on a GPU; empty on a CPU."""
    expected = facts.forecast
    if expected is None:
        return ""
    each = f"{1000.0 * expected.step_s:.3g} ms each on {facts.machine.device_name} (forecast)"
    if not facts.time_budget_s:
        return f"; {each}"
    batch = int(facts.settled["data"]["batch_size"])
    epochs = expected.num_steps * batch / max(1, facts.num_training)
    text = f": about {expected.num_steps:,}, {each}, or {epochs:.3g} epochs in {expected.available_s:.0f} s"
    if expected.is_to_target:
        text += ", the time for which a run to a target is planned"
    elif expected.available_s < sized_s(facts):
        text += "; preparing the cases takes the rest of the first run; later runs read them from the cache"
    return text


def settle_loss(facts: PlanFacts) -> None:
    """Dice and cross-entropy for every task: we have not measured another loss to be better on any."""
    first, *others = LOSSES
    facts.settle(
        "loss.name", first, f"as in nnU-Net, for every task; {', '.join(others)} or a boundary term on request"
    )


def settle_optimizer(facts: PlanFacts) -> None:
    """Muon on a CPU and in short runs on a GPU, else AdamW: where each was measured (docs/log)."""
    on_cpu = facts.machine.device == "cpu"
    if on_cpu:
        name, why = "muon", "reached the same Dice in two thirds of AdamW's steps (docs/log)"
    else:
        name, why = _device_optimizer(facts)
    factor, scaled = (1.0, "") if on_cpu else _rate_factor(facts)
    kind = OPTIMIZERS[facts.settle("optimizer.name", name, why)]
    if kind.planned_momentum is not None:
        facts.settle("optimizer.momentum", *kind.planned_momentum)
    rate, why = kind.planned_rate
    facts.settle("optimizer.learning_rate", rate * factor, why + scaled + rate_reason(facts))
    clip_norm = OptimizerConfig.model_fields["clip_norm"].default
    facts.settle("optimizer.clip_norm", clip_norm, "larger gradients are clipped to this norm, as in nnU-Net")
    facts.settle("optimizer.weight_decay", 2e-2, "applies to convolutions only, not to biases and norms")
    if facts.overrides.get("train.target_dice", 0.0):
        why = "the time to reach the target is unknown, so the learning rate cannot decay toward it"
        facts.settle("schedule.warmup_share", 0.0, why)
        facts.settle("schedule.decay", "constant", why)
        facts.settle("optimizer.average_decay", 0.98, "averages the last 50 steps, as a decaying learning rate would")
    else:
        facts.settle("schedule.decay", "cosine", "the final weights are then as good as their running average")


def _device_optimizer(facts: PlanFacts) -> tuple[str, str]:
    """The optimizer on a GPU, and why."""
    budget_s = facts.time_budget_s
    num_steps = facts.forecast.num_steps if facts.forecast else 0
    is_short = 0.0 < budget_s < _MUON_BELOW_S and not is_to_target(facts)
    if not is_short or num_steps > _MUON_MOST_STEPS:
        return "adamw", "needs no long warm-up; Muon has not been measured on a GPU yet"
    if planned_compute(facts) == "float16":
        return "adamw", "loss scaling for float16 has not been tested with Muon"
    return "muon", (
        f"the run has about {num_steps:,} steps, and on a CPU Muon reached the same Dice in two thirds of AdamW's "
        "(docs/log); not measured on a GPU yet"
    )


def _rate_factor(facts: PlanFacts) -> tuple[float, str]:
    """By what the learning rate of the usual batch is multiplied, and why."""
    batch = int(facts.settled["data"]["batch_size"])
    if batch <= MOST_BATCH:
        return 1.0, ""
    factor = round(min(_MOST_RATE_FACTOR, (batch / MOST_BATCH) ** 0.5), 3)
    return factor, (
        f"; {factor:g} times as much for {batch} patches instead of {MOST_BATCH}: it grows by the square root of the "
        f"batch (Krizhevsky 2014, arXiv:1404.5997), at most {_MOST_RATE_FACTOR:g} times"
    )


def settle_augment(facts: PlanFacts) -> None:
    """Flips where the anatomy is nearly symmetric, small rotations and zooms, and changes of intensity."""
    settle_flips(facts)
    facts.settle("data.augment.affine_probability", 0.7, "most patches are rotated and zoomed")
    facts.settle("data.augment.rotation_share", 1.0, "all of these patches are rotated")
    facts.settle("data.augment.scale_share", 1.0, "all of these patches are zoomed")
    if facts.machine.device == "cpu" and facts.time_budget_s >= LONG_BUDGET_S:
        why = "nnU-Net's range, because long runs overfit with a smaller one (docs/log)"
        facts.settle("data.augment.rotation_degrees", [30.0, 30.0, 30.0], why)
        facts.settle("data.augment.scale_range", [0.7, 1.4], why)
    else:
        facts.settle("data.augment.rotation_degrees", [15.0, 15.0, 15.0], "the typical range of patient tilt")
        facts.settle("data.augment.scale_range", [0.85, 1.18], "the typical range of patient size")
    facts.settle("data.augment.intensity_shift_probability", 0.15, "scanners differ in offset as well as in scale")
    if facts.machine.device == "cpu":
        facts.settle(
            "data.augment.ramp_epochs", 50, "short runs reach a higher Dice without augmentation at first (docs/log)"
        )
        for effect in EFFECTS:
            if effect.is_in_nnunet and not effect.is_searched:
                why = "not part of the augmentation that we tuned on a CPU (docs/log)"
                facts.settle(f"data.augment.{effect.probability}", 0.0, why)
    facts.settle("data.augment.gamma_keeps", "range", "the darkest and brightest values stay unchanged")


def settle_flips(facts: PlanFacts) -> None:
    """Left-right flips, with the classes of a pair swapped; none where a flip would teach a wrong side."""
    if facts.data.regions:
        _settle_flips_of_regions(facts)
        return
    sides = find_sides(facts.data.class_names)
    pairs = [list(pair) for pair in sides.pairs]
    if pairs or "data.augment.swap_pairs" in facts.overrides:
        pairs = facts.settle(
            "data.augment.swap_pairs", pairs, f"{_numbered(facts, pairs)}: a left-right flip swaps their labels"
        )
        swapped_classes(facts.data.class_names, pairs)
    swapped = {name for pair in pairs for name in pair}
    unlike = [" and ".join(pair) for pair in sides.unlike if not swapped.issuperset(pair)]
    unswapped = [" and ".join(pair) for pair in sides.pairs if not swapped.issuperset(pair)]
    single = [name for name in sides.single if name not in swapped]
    flips, reason = [0.0, 0.0, 0.0], ""
    if single:
        found = listed(single, 3)
        reason = f"no flips: {found} is labeled on one side only, and a flipped other side would look like it"
    elif unlike:
        reason = f"no flips: the mirror image of one of {listed(unlike, 3)} does not look like the other"
    elif unswapped:
        reason = f"no flips: swap_pairs does not include {listed(unswapped, 3)}, and a flip would exchange their labels"
    elif pairs and facts.settled["data"]["prepare"]["orientation"] == "keep":
        reason = "no flips: scans keep their orientation, so the left-right axis is unknown"
    else:
        flips[0] = 0.5
        reason = "left and right are near mirror images; front and back, head and foot are not"
        if not pairs and len(facts.data.class_names) > 2:
            reason += "; no class name states a side, so no labels are swapped (data.augment.swap_pairs names pairs)"
    facts.settle("data.augment.flip_probability", flips, reason)


def _settle_flips_of_regions(facts: PlanFacts) -> None:
    """As for classes, but nothing is swapped: a region is a set of classes, and its channel has no partner."""
    if facts.overrides.get("data.augment.swap_pairs"):
        raise ConfigError(
            f"data.augment.swap_pairs: {facts.overrides['data.augment.swap_pairs']} cannot be swapped, as this data "
            f"set has regions (overlapping classes); leave the key out, or the regions in dataset.json"
        )
    named = {*facts.data.regions, *facts.data.class_names[1:]}
    sides = find_sides(("background", *sorted(named)))
    sided = sorted({*sides.single, *(name for pair in (*sides.pairs, *sides.unlike) for name in pair)})
    reason = "left and right are near mirror images; front and back, head and foot are not"
    if sided:
        have = "has" if len(sided) == 1 else "have"
        reason = f"no flips: {listed(sided, 3)} {have} a side, and regions cannot be swapped"
    facts.settle("data.augment.flip_probability", [0.0 if sided else 0.5, 0.0, 0.0], reason)


def _numbered(facts: PlanFacts, pairs: Sequence[Sequence[str]]) -> str:
    """The pairs with their class indices, as "classes 3/4 LeftParotid/RightParotid are a pair"."""
    index_of = {name: index for index, name in enumerate(facts.data.class_names)}
    texts = [f"{index_of[left]}/{index_of[right]} {left}/{right}" for left, right in pairs]
    what = "a pair" if len(texts) == 1 else "pairs"
    return f"classes {listed(texts, 3)} are {what}" if texts else "no classes are pairs"


def settle_window(facts: PlanFacts) -> None:
    """Windows of the final validation and of prediction."""
    shape = facts.settle(
        "window.shape_voxel",
        list(facts.settled["data"]["patch"]["shape_voxel"]),
        "as in training: padding a larger window shifts the statistics of instance norms (docs/log)",
    )
    facts.settle("window.overlap", 0.5, "as in nnU-Net, blended by a Gaussian")
    flips = facts.settled["data"]["augment"]["flip_probability"]
    mirrored = [axis for axis, probability in enumerate(flips) if probability > 0.0]
    facts.settle("window.mirror_axes", mirrored, "the axes along which patches are flipped in training, as in nnU-Net")
    pairs = facts.settled["data"]["augment"].get("swap_pairs", [])
    if pairs:
        facts.settle("window.swap_pairs", pairs, "their channels are swapped in windows mirrored from left to right")
    # An edge of 0 is refused with the whole plan.
    num_voxels = max(1, int(np.prod(shape)))
    why = "windows in a batch; on two cores, four small windows in a batch took 0.6 times as long as one by one"
    if facts.machine.device == "cpu":
        at_once = int(np.clip(300_000 // num_voxels, 1, 16))
    else:
        at_once, left = windows_at_once(facts, most=int(np.clip(8_000_000 // num_voxels, 1, 16)))
        why += left
    facts.settle("window.batch_size", at_once, why, changes_results=False)


RULES = (
    settle_start,
    settle_orientation_and_spacing,
    settle_intensity,
    settle_crop_and_dtype,
    settle_cache,
    settle_start_patch,
    settle_patch_and_network,
    settle_device_cache,
    settle_feed,
    settle_augment,
    settle_length,
    settle_loss,
    settle_optimizer,
    # After everything else that makes up a step, because it may measure the step.
    settle_precision,
    settle_window,
)
