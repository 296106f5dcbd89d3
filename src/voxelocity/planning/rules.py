"""The rules, in the order of a voxel's path through them. Each settles a few keys and says why.

If a rule follows a publication, its docstring cites it; if it follows our own measurement, its reason cites that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from voxelocity.planning.cache_rule import settle_cache
from voxelocity.planning.facts import Facts
from voxelocity.planning.flip_rule import settle_flips
from voxelocity.planning.memory_rule import GPU_PATCH_VOXELS, GPU_WIDTHS, fit_device, network_name, settle_device_batch
from voxelocity.planning.patch_rule import PatchFit, fit_patch, strides_for
from voxelocity.planning.precision_rule import settle_precision
from voxelocity.planning.prepared_size import prepared_bytes, prepared_spacing_mm

Vector = npt.NDArray[np.float64]

# With this many patch voxels, one training step of the planned network takes about 0.1 to 0.3 s on two cores.
_CPU_PATCH_VOXELS = 64_000
_LONG_BUDGET_S = 600.0
# Of a DynUNet behind a stem on a CPU; the network has at least three levels.
_STEM_WIDTHS = (24, 48, 96)
_FEWEST_STRIDES = 2
# nnU-Net resamples for a low-resolution network if the patch covers less than a quarter of the median volume; we let a
# patch cover at least one part in this many, or training would not visit most of the volume.
_CPU_MAX_PATCHES = 24
_GPU_MAX_PATCHES = 64


def settle_orientation_and_spacing(facts: Facts) -> None:
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
        reason = f"every case has a spacing of {_mm(median)}; nothing is resampled"
    else:
        reason = f"median of the spacings {_mm(low)} to {_mm(high)}"
    spacing = median
    shape = np.array(facts.data.extent_mm.median) / spacing
    on_cpu = facts.machine.device == "cpu"
    max_patches = _CPU_MAX_PATCHES if on_cpu else _GPU_MAX_PATCHES
    wanted = max_patches * (_CPU_PATCH_VOXELS if on_cpu else GPU_PATCH_VOXELS)
    if shape.prod() > wanted:
        spacing = coarsen(spacing, shape, wanted)
        reason += (
            f"; coarser, because the median case would have {shape.prod() / 1e6:.1f} million voxels, and a patch on "
            f"the {facts.machine.device_name} would cover less than 1/{max_patches} of it"
        )
    rounded = [round(float(s), 3) for s in spacing]
    facts.settle("data.prepare.spacing_mm", rounded, reason)


def coarsen(spacing: Vector, shape: Vector, max_voxels: float) -> Vector:
    """The spacing made coarser, finest axes first, until the volume has `max_voxels`."""
    low, high = float(spacing.min()), float(spacing.max()) * 64
    for _ in range(60):
        floor = (low * high) ** 0.5
        voxels = (shape * spacing / np.maximum(spacing, floor)).prod()
        low, high = (floor, high) if voxels > max_voxels else (low, floor)
    coarser: Vector = np.maximum(spacing, high)
    return coarser


def settle_intensity(facts: Facts) -> None:
    """CT with a fixed window and global statistics, everything else case by case (nnU-Net)."""
    first = facts.data.intensity[0]
    if facts.data.is_ct:
        low, high = _whole_if_wide(first.percentile_00_5, first.percentile_99_5)
        mode = facts.settle(
            "data.prepare.intensity.mode",
            "window",
            f"{'' if facts.data.names_ct else 'air near -1000: these are '}CT numbers, which mean the same in every "
            f"case: clipped to the 0.5 and 99.5 percentiles of the foreground ({low:.0f} to {high:.0f}), then "
            f"normalized by its mean {first.mean:.0f} and standard deviation {first.std:.0f}",
        )
    else:
        spread = ", ".join(f"{part.lowest:.4g} to {part.highest:.4g}" for part in facts.data.intensity)
        mode = facts.settle(
            "data.prepare.intensity.mode",
            "zscore",
            f"intensities ({spread}) are not comparable between cases: "
            "each channel of each case is scaled to mean 0, standard deviation 1"
            + ("; if they are CT numbers, name the channel CT (docs/data-sets.md)" if _is_unnamed(facts) else ""),
        )
    if mode == "window":
        low, high = _whole_if_wide(first.percentile_00_5, first.percentile_99_5)
        window = {
            "low": low,
            "high": high,
            "mean": first.mean,
            "std": max(first.std, 1e-6),
        }
        for name, value in window.items():
            facts.settle(f"data.prepare.intensity.{name}", value, "from the foreground of the sampled cases")


def _is_unnamed(facts: Facts) -> bool:
    """Whether the only channel has the name of a table's column, which does not say what it is."""
    return facts.data.channels == ("image",)


def _whole_if_wide(low: float, high: float) -> tuple[float, float]:
    """Ends of a window as whole numbers, so that CT numbers stay integers in the cache."""
    return (float(round(low)), float(round(high))) if high - low >= 20.0 else (low, high)


def settle_crop_and_dtype(facts: Facts) -> None:
    """Cropping to non-zero voxels if that saves a fifth; voxels kept in one or two bytes."""
    share = facts.data.crop_share
    crop = "nonzero" if share < 0.8 else "none"
    facts.settle(
        "data.prepare.crop",
        crop,
        f"the box of non-zero voxels holds {share:.0%} of a case (median of {facts.data.num_sampled})",
    )
    facts.settle(
        "data.prepare.dtype",
        "smallest",
        "integers stay unchanged, other values take two bytes and shift by at most 1/65,000 of a case's range; "
        f"all cases then take {prepared_bytes(facts) / 2**30:.2f} GiB",
    )


def settle_patch_and_network(facts: Facts) -> None:
    """A patch as large as the device allows, in the proportions of the median case; as many levels as it allows."""
    on_cpu = facts.machine.device == "cpu"
    spacing = prepared_spacing_mm(facts)
    shape = np.array(facts.data.extent_mm.median) / spacing
    if facts.settled["data"]["prepare"]["crop"] == "nonzero":
        shape = np.maximum(shape * facts.data.crop_share ** (1 / 3), 1.0)
    max_levels = 4 if on_cpu else 6
    fit, widths, most = _on_cpu(facts, shape, spacing) if on_cpu else fit_device(facts, shape, spacing)
    device = "a step on this device should see at most"
    if not on_cpu and most < GPU_PATCH_VOXELS:
        device = (
            f"a small batch must fit the memory that is free on {facts.machine.device_name}, so a patch has at most"
        )
    median = " x ".join(f"{n:.0f}" for n in shape)
    patch = facts.settle(
        "data.patch.shape_voxel",
        list(fit.shape_voxel),
        f"the median case has {median} voxels; {device} {most:,} (whole multiples of {fit.divisor} for the network)",
    )
    strides: Sequence[Sequence[int]] = fit.strides
    if list(patch) != list(fit.shape_voxel):
        strides = strides_for(tuple(patch), spacing, max_levels=max_levels)
    name = network_name(strides)
    if name == "dynunet":
        why = "nnU-Net's network, which learned the most per step in our comparison"
    else:
        why = "patches are too small for the three levels of DynUNet"
    name = facts.settle("network.name", name, why)
    if name == "dynunet":
        strides, widths = _settle_stem(facts, strides, widths)
    strides = facts.settle("network.strides", [list(s) for s in strides], "halves the axes of finest spacing first")
    settle_widths(facts, widths, num_levels=len(strides) + 1)
    settle_batch(facts)


def _on_cpu(facts: Facts, shape: Vector, spacing: Vector) -> tuple[PatchFit, Sequence[int], int]:
    """Patch and widths by the cost of a step, and the maximum number of voxels in a patch."""
    long = facts.request.time_budget_s >= _LONG_BUDGET_S
    widths = (16, 32, 64, 128) if long else (8, 32, 64, 128)
    return fit_patch(shape, spacing, max_voxels=_CPU_PATCH_VOXELS, max_levels=len(widths)), widths, _CPU_PATCH_VOXELS


def _settle_stem(
    facts: Facts, strides: Sequence[Sequence[int]], widths: Sequence[int]
) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
    """Moves the first halving before the first level, so that short runs on a CPU spend no time at the finest level.

    Returns:
        Strides and widths of the remaining levels.
    """
    is_own = not facts.overrides.keys().isdisjoint({"network.strides", "network.widths"})
    on_cpu, is_long = facts.machine.device == "cpu", facts.request.time_budget_s >= _LONG_BUDGET_S
    stride: Sequence[int] = (1, 1, 1)
    if not on_cpu:
        reason = "as in nnU-Net, the first level has the resolution of the patch"
    elif is_own:
        reason = "you set the levels, so the first one has the resolution of the patch"
    elif is_long:
        reason = f"{facts.request.time_budget_s / 60:.0f} minutes are enough to train a level as fine as the patch"
    elif len(strides) <= _FEWEST_STRIDES:
        reason = "the patch is too small to leave out a level"
    else:
        stride = strides[0]
        reason = "no level as fine as the patch: a step takes half the time, and short runs learn more (docs/log.md)"
    stride = facts.settle("network.stem_stride", list(stride), reason)
    if is_own or tuple(stride) == (1, 1, 1) or len(strides) <= _FEWEST_STRIDES:
        return strides, widths
    return strides[1:], _STEM_WIDTHS if on_cpu else widths


def settle_widths(facts: Facts, widths: Sequence[int], *, num_levels: int) -> None:
    """Features of each level: nnU-Net's on a GPU that has room for them, fewer on a CPU or in a short run."""
    budget_s = facts.request.time_budget_s
    reason = f"{num_levels} levels, until the patch is 4 voxels wide or the device is full"
    if facts.machine.device != "cpu":
        if tuple(widths) != GPU_WIDTHS:
            reason += f"; narrower than nnU-Net's {GPU_WIDTHS[0]}, which needs more memory than is free here"
    elif budget_s >= _LONG_BUDGET_S:
        reason += f"; {budget_s / 60:.0f} minutes are enough to train a wider finest level, at 1.5 times slower steps"
    elif tuple(widths) == _STEM_WIDTHS:
        reason += "; few features, because the run is short for a CPU"
    else:
        reason += "; a narrow finest level, because a CPU spends most of a step there"
    facts.settle("network.widths", list(widths[:num_levels]), reason)


def settle_batch(facts: Facts) -> None:
    """Patches in a batch."""
    if facts.machine.device == "cpu":
        facts.settle("data.batch_size", 2, "as in nnU-Net; on a CPU a larger batch only means fewer steps")
    else:
        settle_device_batch(facts)
    facts.settle(
        "data.patch.foreground_share",
        0.33,
        "as in nnU-Net, a third of the patches is centered on foreground, every class equally often",
    )
    facts.settle("data.patch.draws_per_case", 1, "one patch of each case per epoch", changes_results=True)


def settle_feed(facts: Facts) -> None:
    """Threads that cut patches; on a CPU they share the cores with training."""
    on_cpu = facts.machine.device == "cpu"
    threads = 1 if on_cpu else max(1, min(8, facts.machine.num_cpus - 1))
    facts.settle(
        "data.feed.num_threads",
        threads,
        f"{facts.machine.num_cpus} cores" + (", which training itself needs" if on_cpu else ""),
        changes_results=False,
    )
    facts.settle("data.feed.num_batches_ahead", 4, "smooths over slow cases", changes_results=False)


def settle_length(facts: Facts) -> None:
    """Steps or seconds of the run, and its seed."""
    request = facts.request
    if request.time_budget_s:
        facts.settle("train.steps", 0, f"as many as fit into {request.time_budget_s:.0f} s")
        facts.settle("train.validation_share", 0.01, "the budget is for training; a curve needs few validations")
    else:
        on_cpu = facts.machine.device == "cpu"
        steps = int(np.clip(40 * request.num_training, 1_000, 4_000 if on_cpu else 40_000))
        batch = int(facts.settled["data"]["batch_size"])
        facts.settle(
            "train.steps",
            steps,
            f"each of the {request.num_training} training cases is seen about "
            f"{steps * batch / request.num_training:.0f} times; --time-budget limits the time instead",
        )
    facts.settle("seed", request.seed, "the default, or --seed")
    facts.settle("train.time_budget_s", request.time_budget_s, "--time-budget" if request.time_budget_s else "no limit")


def settle_loss(facts: Facts) -> None:
    """Dice and cross-entropy for every task: we have not measured another loss to be better on any."""
    facts.settle(
        "loss.name", "dice_ce", "as in nnU-Net, for every task; dice_focal, tversky_ce or a boundary term on request"
    )


def settle_optimizer(facts: Facts) -> None:
    """Muon on a CPU, AdamW on a GPU: where each was measured (docs/log.md)."""
    if facts.machine.device == "cpu":
        name, why = "muon", "reached the same Dice in two thirds of AdamW's steps (docs/log.md)"
    else:
        name, why = "adamw", "has no long momentum to warm up; Muon has not been measured on a GPU yet"
    if facts.settle("optimizer.name", name, why) == "muon":
        facts.settle("optimizer.momentum", 0.95, "Muon's usual value")
        facts.settle("optimizer.learning_rate", 8e-3, "learned faster than 4e-3 in our short runs")
    else:
        facts.settle("optimizer.learning_rate", 4e-3, "3e-3 and 8e-3 gave similar results in our short runs")
    facts.settle("optimizer.weight_decay", 2e-2, "applies to convolutions only, not to biases and norms")
    if facts.overrides.get("train.target_dice", 0.0):
        why = "the time to reach the target is unknown, so the learning rate cannot decay toward it"
        facts.settle("schedule.warmup_share", 0.0, why)
        facts.settle("schedule.decay", "constant", why)
        facts.settle("optimizer.average_decay", 0.98, "averages the last 50 steps, as a decaying learning rate would")
    else:
        facts.settle("schedule.decay", "cosine", "the final weights are then as good as their running average")


def settle_augment(facts: Facts) -> None:
    """Flips where the anatomy is nearly symmetric, small rotations and zooms, and changes of intensity."""
    settle_flips(facts)
    facts.settle("data.augment.affine_probability", 0.7, "most patches are rotated and zoomed")
    facts.settle("data.augment.rotation_share", 1.0, "all of these patches are rotated")
    facts.settle("data.augment.scale_share", 1.0, "all of these patches are zoomed")
    if facts.machine.device == "cpu" and facts.request.time_budget_s >= _LONG_BUDGET_S:
        why = "nnU-Net's range, because a long run overfits with less (docs/log.md)"
        facts.settle("data.augment.rotation_degrees", [30.0, 30.0, 30.0], why)
        facts.settle("data.augment.scale_range", [0.7, 1.4], why)
    else:
        facts.settle("data.augment.rotation_degrees", [15.0, 15.0, 15.0], "the range in which patients are tilted")
        facts.settle("data.augment.scale_range", [0.85, 1.18], "the range in which patients differ in size")
    facts.settle("data.augment.intensity_shift_probability", 0.15, "scanners differ in offset as well as in scale")
    if facts.machine.device == "cpu":
        facts.settle("data.augment.ramp_epochs", 50, "new cases need no augmentation at first: short runs learned more")
        for name in ("blur", "contrast", "low_resolution", "gamma_inverted"):
            facts.settle(
                f"data.augment.{name}_probability", 0.0, "not in the recipe that we searched on a CPU (docs/log.md)"
            )
    facts.settle("data.augment.gamma_keeps", "range", "the darkest and brightest values stay unchanged")


def settle_window(facts: Facts) -> None:
    """Windows of the final validation and of prediction."""
    shape = facts.settled["data"]["patch"]["shape_voxel"]
    facts.settle(
        "window.shape_voxel",
        list(shape),
        "as in training: a larger window, zero-padded, shifts the statistics of instance norms (docs/log.md)",
    )
    facts.settle("window.overlap", 0.5, "as in nnU-Net, blended by a Gaussian")
    flips = facts.settled["data"]["augment"]["flip_probability"]
    mirrored = [axis for axis, probability in enumerate(flips) if probability > 0.0]
    facts.settle("window.mirror_axes", mirrored, "the axes along which patches are flipped in training, as in nnU-Net")
    pairs = facts.settled["data"]["augment"].get("swap_pairs", [])
    if pairs:
        facts.settle("window.swap_pairs", pairs, "their channels swap places in windows mirrored from left to right")
    most = 300_000 if facts.machine.device == "cpu" else 8_000_000
    at_once = int(np.clip(most // np.prod(shape), 1, 16))
    facts.settle(
        "window.batch_size",
        at_once,
        "windows at once; on two cores, four small ones at once took 0.6 times as long as one by one",
        changes_results=False,
    )


RULES = (
    settle_orientation_and_spacing,
    settle_intensity,
    settle_crop_and_dtype,
    settle_cache,
    settle_patch_and_network,
    settle_feed,
    settle_augment,
    settle_length,
    settle_loss,
    settle_optimizer,
    # After everything else that makes up a step, because it may measure the step.
    settle_precision,
    settle_window,
)


def _mm(values: Vector) -> str:
    return " x ".join(f"{v:.3g}" for v in values) + " mm"
