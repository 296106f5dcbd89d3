"""The rules, in the order in which a voxel meets them. Each settles a few keys and says why.

Where a rule follows a published one, its docstring names it; where it follows a measurement of ours, the reason does.
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

# Patch voxels that keep one training step of the planned network near 0.1 to 0.3 s on two cores.
_CPU_PATCH_VOXELS = 64_000
_LONG_BUDGET_S = 600.0
# Of a CPU's DynUNet behind a stem; the network has three levels at least.
_STEM_WIDTHS = (24, 48, 96)
_FEWEST_STRIDES = 2
# nnU-Net resamples for a low-resolution network when the patch sees less than a quarter of the median volume; on a
# CPU we let it see at least this share, or training would not visit most of the volume.
_CPU_MAX_PATCHES = 24
_GPU_MAX_PATCHES = 64


def settle_orientation_and_spacing(facts: Facts) -> None:
    """Median spacing as in nnU-Net (Isensee et al. 2021, 10.1038/s41592-020-01008-z), coarser where the device asks."""
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
            f"the {facts.machine.device_name} could see less than 1/{max_patches} of it"
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
    """CT by fixed window and global statistics, everything else case by case (nnU-Net)."""
    first = facts.data.intensity[0]
    if facts.data.is_ct:
        low, high = _whole_if_wide(first.percentile_00_5, first.percentile_99_5)
        mode = facts.settle(
            "data.prepare.intensity.mode",
            "window",
            f"{'' if facts.data.names_ct else 'air near -1000: these are '}CT numbers, which mean the same in every "
            f"case: clipped to the 0.5 and 99.5 percentiles of the foreground ({low:.0f} to {high:.0f}), then mean "
            f"{first.mean:.0f} and deviation {first.std:.0f} of the foreground",
        )
    else:
        spread = ", ".join(f"{part.lowest:.4g} to {part.highest:.4g}" for part in facts.data.intensity)
        mode = facts.settle(
            "data.prepare.intensity.mode",
            "zscore",
            f"intensities ({spread}) are not comparable between cases: "
            "each channel of each case to mean 0, deviation 1"
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
            facts.settle(f"data.prepare.intensity.{name}", value, "of the foreground of the sampled cases")


def _is_unnamed(facts: Facts) -> bool:
    """Whether the one channel is called as a table's column is, which says nothing of what it is."""
    return facts.data.channels == ("image",)


def _whole_if_wide(low: float, high: float) -> tuple[float, float]:
    """Ends of a window as whole numbers, so that CT numbers stay the integers they are in the cache."""
    return (float(round(low)), float(round(high))) if high - low >= 20.0 else (low, high)


def settle_crop_and_dtype(facts: Facts) -> None:
    """Cropping to non-zero voxels where that saves a fifth; voxels kept in one or two bytes."""
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
        "integers stay as they are, other values take two bytes and move by at most 1/65,000 of a case's range; "
        f"all cases then take {prepared_bytes(facts) / 2**30:.2f} GiB",
    )


def settle_patch_and_network(facts: Facts) -> None:
    """Patch as large as the device lets it be, in the proportions of the median case; as many levels as it feeds."""
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
        why = "nnU-Net's network: learned most per step of those in our comparison"
    else:
        why = "patches are too small for the three levels of DynUNet"
    name = facts.settle("network.name", name, why)
    if name == "dynunet":
        strides, widths = _settle_stem(facts, strides, widths)
    strides = facts.settle("network.strides", [list(s) for s in strides], "halving the axes of finest spacing first")
    settle_widths(facts, widths, num_levels=len(strides) + 1)
    settle_batch(facts)


def _on_cpu(facts: Facts, shape: Vector, spacing: Vector) -> tuple[PatchFit, Sequence[int], int]:
    """Patch and widths by what a step costs, and the most voxels of a patch."""
    long = facts.request.time_budget_s >= _LONG_BUDGET_S
    widths = (16, 32, 64, 128) if long else (8, 32, 64, 128)
    return fit_patch(shape, spacing, max_voxels=_CPU_PATCH_VOXELS, max_levels=len(widths)), widths, _CPU_PATCH_VOXELS


def _settle_stem(
    facts: Facts, strides: Sequence[Sequence[int]], widths: Sequence[int]
) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
    """The first halving made before the first level, where minutes on a CPU are not to be spent at the finest level.

    Returns:
        Strides and widths of the levels that are left.
    """
    is_own = not facts.overrides.keys().isdisjoint({"network.strides", "network.widths"})
    on_cpu, is_long = facts.machine.device == "cpu", facts.request.time_budget_s >= _LONG_BUDGET_S
    stride: Sequence[int] = (1, 1, 1)
    if not on_cpu:
        reason = "nnU-Net's network: levels begin at the voxels of the patch"
    elif is_own:
        reason = "levels begin at the voxels of the patch, as they are set by you"
    elif is_long:
        reason = f"{facts.request.time_budget_s / 60:.0f} minutes are enough to teach a level as fine as the patch"
    elif len(strides) <= _FEWEST_STRIDES:
        reason = "the patch is too small to leave a level out"
    else:
        stride = strides[0]
        reason = "no level as fine as the patch: half the time of a step, and more learned in minutes (docs/log.md)"
    stride = facts.settle("network.stem_stride", list(stride), reason)
    if is_own or tuple(stride) == (1, 1, 1) or len(strides) <= _FEWEST_STRIDES:
        return strides, widths
    return strides[1:], _STEM_WIDTHS if on_cpu else widths


def settle_widths(facts: Facts, widths: Sequence[int], *, num_levels: int) -> None:
    """Features of each level: nnU-Net's on a GPU that has room for them, fewer on a CPU or where there are minutes."""
    budget_s = facts.request.time_budget_s
    reason = f"{num_levels} levels, until the patch is 4 voxels wide or the device is full"
    if facts.machine.device != "cpu":
        if tuple(widths) != GPU_WIDTHS:
            reason += f"; narrower than nnU-Net's {GPU_WIDTHS[0]}, which needs more memory than is free here"
    elif budget_s >= _LONG_BUDGET_S:
        reason += f"; {budget_s / 60:.0f} minutes are enough to teach a wider finest level, 1.5 times slower a step"
    elif tuple(widths) == _STEM_WIDTHS:
        reason += "; few features, because minutes on a CPU are short"
    else:
        reason += "; a narrow finest level, because a CPU spends most of a step there"
    facts.settle("network.widths", list(widths[:num_levels]), reason)


def settle_batch(facts: Facts) -> None:
    """Patches in a batch."""
    if facts.machine.device == "cpu":
        facts.settle("data.batch_size", 2, "nnU-Net's two: on a CPU a larger batch only makes steps fewer")
    else:
        settle_device_batch(facts)
    facts.settle(
        "data.patch.foreground_share",
        0.33,
        "nnU-Net's third of the patches is centered on foreground, each class alike",
    )
    facts.settle("data.patch.draws_per_case", 1, "one patch of each case an epoch", changes_results=True)


def settle_feed(facts: Facts) -> None:
    """Threads that cut patches; on a CPU they share the cores with the training."""
    on_cpu = facts.machine.device == "cpu"
    threads = 1 if on_cpu else max(1, min(8, facts.machine.num_cpus - 1))
    facts.settle(
        "data.feed.num_threads",
        threads,
        f"{facts.machine.num_cpus} cores" + (", which the training itself needs" if on_cpu else ""),
        changes_results=False,
    )
    facts.settle("data.feed.num_batches_ahead", 4, "smooths over a slow case", changes_results=False)


def settle_length(facts: Facts) -> None:
    """Steps or seconds, and the learning rate that suits so short or long a run."""
    request = facts.request
    if request.time_budget_s:
        facts.settle("train.steps", 0, f"as many as fit into {request.time_budget_s:.0f} s")
        facts.settle("train.validation_share", 0.01, "a budget is for training steps; a curve needs few validations")
    else:
        on_cpu = facts.machine.device == "cpu"
        steps = int(np.clip(40 * request.num_training, 1_000, 4_000 if on_cpu else 40_000))
        batch = int(facts.settled["data"]["batch_size"])
        facts.settle(
            "train.steps",
            steps,
            f"each of the {request.num_training} training cases is seen about "
            f"{steps * batch / request.num_training:.0f} times; --time-budget ends by the clock instead",
        )
    facts.settle("seed", request.seed, "the default, or --seed")
    facts.settle("train.time_budget_s", request.time_budget_s, "--time-budget" if request.time_budget_s else "no limit")


def settle_loss(facts: Facts) -> None:
    """Dice and cross-entropy, whatever the task: the others have not been measured to be better on any."""
    facts.settle(
        "loss.name", "dice_ce", "nnU-Net's for every task; dice_focal, tversky_ce or a boundary term on request"
    )


def settle_optimizer(facts: Facts) -> None:
    """Muon on a CPU, AdamW on a GPU: where each was measured (docs/log.md)."""
    if facts.machine.device == "cpu":
        name, why = "muon", "reached the same Dice in two thirds of AdamW's steps (docs/log.md)"
    else:
        name, why = "adamw", "needs no long momentum to warm up; Muon was not measured on a GPU yet"
    if facts.settle("optimizer.name", name, why) == "muon":
        facts.settle("optimizer.momentum", 0.95, "Muon's usual one")
        facts.settle("optimizer.learning_rate", 8e-3, "learned sooner than 4e-3 in our runs of minutes")
    else:
        facts.settle("optimizer.learning_rate", 4e-3, "3e-3 and 8e-3 came out alike in our runs of minutes")
    facts.settle("optimizer.weight_decay", 2e-2, "of convolutions alone, not of biases and norms")
    if facts.overrides.get("train.target_dice", 0.0):
        why = "nobody knows when the target will be reached, so the learning rate cannot fall towards it"
        facts.settle("schedule.warmup_share", 0.0, why)
        facts.settle("schedule.decay", "constant", why)
        facts.settle("optimizer.average_decay", 0.98, "averages the last 50 steps, as a falling learning rate would")
    else:
        facts.settle("schedule.decay", "cosine", "the last weights are then as good as a running average of them")


def settle_augment(facts: Facts) -> None:
    """Flips where anatomy is near symmetric, small rotations and zooms, and changes of intensity."""
    settle_flips(facts)
    facts.settle("data.augment.affine_probability", 0.7, "rotation and zoom of most patches")
    facts.settle("data.augment.rotation_share", 1.0, "all of these are turned")
    facts.settle("data.augment.scale_share", 1.0, "and zoomed")
    if facts.machine.device == "cpu" and facts.request.time_budget_s >= _LONG_BUDGET_S:
        why = "nnU-Net's, because a long run overfits with less (docs/log.md)"
        facts.settle("data.augment.rotation_degrees", [30.0, 30.0, 30.0], why)
        facts.settle("data.augment.scale_range", [0.7, 1.4], why)
    else:
        facts.settle("data.augment.rotation_degrees", [15.0, 15.0, 15.0], "as far as patients lie askew")
        facts.settle("data.augment.scale_range", [0.85, 1.18], "as far as patients differ in size")
    facts.settle("data.augment.intensity_shift_probability", 0.15, "scanners differ in offset as in scale")
    if facts.machine.device == "cpu":
        facts.settle("data.augment.ramp_epochs", 50, "what is new need not be changed: runs of minutes learned more")
        for name in ("blur", "contrast", "low_resolution", "gamma_inverted"):
            facts.settle(
                f"data.augment.{name}_probability", 0.0, "not in the recipe of our search on a CPU (docs/log.md)"
            )
    facts.settle("data.augment.gamma_keeps", "range", "darkest and brightest stay what they are")


def settle_window(facts: Facts) -> None:
    """Windows of the final validation and of prediction."""
    shape = facts.settled["data"]["patch"]["shape_voxel"]
    facts.settle(
        "window.shape_voxel",
        list(shape),
        "as in training: a wider one, zero-padded, shifts the statistics of instance norms (docs/log.md)",
    )
    facts.settle("window.overlap", 0.5, "nnU-Net's half, blended by a Gaussian")
    flips = facts.settled["data"]["augment"]["flip_probability"]
    mirrored = [axis for axis, probability in enumerate(flips) if probability > 0.0]
    facts.settle("window.mirror_axes", mirrored, "the axes along which patches are flipped in training, as in nnU-Net")
    pairs = facts.settled["data"]["augment"].get("swap_pairs", [])
    if pairs:
        facts.settle("window.swap_pairs", pairs, "their channels trade places in windows mirrored from left to right")
    most = 300_000 if facts.machine.device == "cpu" else 8_000_000
    at_once = int(np.clip(most // np.prod(shape), 1, 16))
    facts.settle(
        "window.batch_size",
        at_once,
        "windows at once; four small ones took 0.6 times the seconds of one by one on two cores",
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
    # Last of what a step is made of, because it may be measured.
    settle_precision,
    settle_window,
)


def _mm(values: Vector) -> str:
    return " x ".join(f"{v:.3g}" for v in values) + " mm"
