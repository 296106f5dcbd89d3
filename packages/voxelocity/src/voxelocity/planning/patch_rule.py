"""The patch, the network and the batch: as large as the device allows, in the proportions of the median case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from voxelocity.core.region import Index3
from voxelocity.planning.cache_rule import prepared_spacing_mm
from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.memory_rule import device_bytes, window_bytes
from voxelocity.planning.patch_fit import PatchFit, Vector, fit_patch, strides_for
from voxelocity.planning.precision_rule import patch_pass
from voxelocity.planning.size_rule import (
    FEWEST_STRIDES,
    GPU_PATCH_VOXELS,
    GPU_WIDTHS,
    LONG_BUDGET_S,
    MOST_BATCH,
    StepSize,
    is_to_target,
    network_name,
    network_section,
    sized_s,
    step_size,
    steps_s,
)
from voxelocity.planning.step_forecast import ENOUGH_STEPS, Forecast, forecast_step_s
from voxelocity_observe.core.quantities import listed

MEMORY_KEYS = (
    "data.patch.shape_voxel",
    "data.batch_size",
    "network.name",
    "network.stem_stride",
    "network.strides",
    "network.widths",
)
"""Keys that depend on the free memory of a device."""

CPU_PATCH_VOXELS = 64_000
"""With this many patch voxels, one training step of the planned network takes about 0.1 to 0.3 s on two cores."""

# Of a DynUNet behind a stem on a CPU; the network has at least three levels.
_STEM_WIDTHS = (24, 48, 96)
_GIB = 2**30
# If memory is short, patches shrink to the first size before networks become narrower: context is worth more.
_SHORT_PATCH_VOXELS, _LEAST_PATCH_VOXELS = 64**3, 24**3
_LEAST_BATCH = 2


def settle_patch_and_network(facts: PlanFacts) -> None:
    """A patch as large as the device allows, in the proportions of the median case; as many levels as it allows."""
    on_cpu = facts.machine.device == "cpu"
    spacing = prepared_spacing_mm(facts)
    shape = np.array(facts.data.extent_mm.median) / spacing
    if facts.settled["data"]["prepare"]["crop"] == "nonzero":
        shape = np.maximum(shape * facts.data.crop_share ** (1 / 3), 1.0)
    size = None if on_cpu else step_size(facts)
    max_levels = 4 if on_cpu else 6
    fit, widths, most = _on_cpu(facts, shape, spacing) if size is None else _on_device(facts, shape, spacing, size)
    median = " x ".join(f"{n:.0f}" for n in shape)
    patch = facts.settle(
        "data.patch.shape_voxel",
        list(fit.shape_voxel),
        f"the median case has {median} voxels; {_why_at_most(facts, size, most)} {most:,} (whole multiples of "
        f"{fit.divisor} for the network)",
    )
    strides: Sequence[Sequence[int]] = fit.strides
    if list(patch) != list(fit.shape_voxel):
        strides = strides_for(tuple(patch), spacing, max_levels=max_levels)
    name = network_name(strides)
    if name == "dynunet":
        why = "nnU-Net's network, which improved the most per step in our comparison"
    else:
        why = "patches are too small for the three levels of DynUNet"
    name = facts.settle("network.name", name, why)
    if name == "dynunet":
        strides, widths = _settle_stem(facts, strides, widths, size)
    strides = facts.settle("network.strides", [list(s) for s in strides], "halves the axes of finest spacing first")
    _settle_widths(facts, widths, num_levels=len(strides) + 1)
    _settle_batch(facts, size, most)


def _why_at_most(facts: PlanFacts, size: StepSize | None, most: int) -> str:
    """What a patch has at most this many voxels for."""
    if size is not None and most < size.max_voxels:
        return f"a small batch must fit the memory that is free on {facts.machine.device_name}, so a patch has at most"
    if size is not None and most < GPU_PATCH_VOXELS:
        return f"at least {ENOUGH_STEPS} steps should fit into {sized_s(facts):.0f} s, so a patch has at most"
    return "a step on this device should have at most"


def _on_cpu(facts: PlanFacts, shape: Vector, spacing: Vector) -> tuple[PatchFit, Sequence[int], int]:
    """Patch and widths by the cost of a step, and the maximum number of voxels in a patch."""
    long = facts.time_budget_s >= LONG_BUDGET_S
    widths = (16, 32, 64, 128) if long else (8, 32, 64, 128)
    fit = fit_patch(
        shape, spacing, max_voxels=CPU_PATCH_VOXELS, max_levels=len(widths), given=_given_strides(facts)
    )  # fmt: skip
    return fit, widths, CPU_PATCH_VOXELS


def _given_strides(facts: PlanFacts) -> tuple[Index3, ...]:
    """The network's strides, if they are not for the rule to choose; that of the stem comes first."""
    known = {**facts.kept, **facts.overrides}
    if "network.strides" not in known:
        return ()
    found = known.get("network.stem_stride", (1, 1, 1)), *known["network.strides"]
    return tuple((int(x), int(y), int(z)) for x, y, z in found)


def _settle_stem(
    facts: PlanFacts, strides: Sequence[Sequence[int]], widths: Sequence[int], size: StepSize | None
) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
    """Moves the first halving before the first level, so that short runs spend no time at the finest level.

    Returns:
        Strides and widths of the remaining levels.
    """
    is_own = not facts.overrides.keys().isdisjoint({"network.strides", "network.widths"})
    is_long = facts.time_budget_s >= LONG_BUDGET_S
    stride: Sequence[int] = (1, 1, 1)
    if size is not None and not size.has_stem:
        reason = "as in nnU-Net, the first level has the resolution of the patch"
    elif is_own:
        reason = "you set the levels, so the first one has the resolution of the patch"
    elif size is None and is_long:
        reason = f"{facts.time_budget_s / 60:.0f} minutes are enough to train a level as fine as the patch"
    elif len(strides) <= FEWEST_STRIDES:
        reason = "the patch is too small to leave out a level"
    else:
        stride = strides[0]
        reason = (
            "no level at the patch's resolution: a step takes half the time, and short runs reach a higher Dice "
            "(docs/log)"
            if size is None
            else f"no level at the patch's resolution, or fewer than {ENOUGH_STEPS} steps would fit into "
            f"{sized_s(facts):.0f} s; short runs on a CPU reach a higher Dice without it (docs/log)"
        )
    stride = facts.settle("network.stem_stride", list(stride), reason)
    if is_own or tuple(stride) == (1, 1, 1) or len(strides) <= FEWEST_STRIDES:
        return strides, widths
    return strides[1:], _STEM_WIDTHS if size is None else widths


def _settle_widths(facts: PlanFacts, widths: Sequence[int], *, num_levels: int) -> None:
    """Features of each level: nnU-Net's on a GPU that has room for them, fewer on a CPU or in a short run."""
    budget_s = facts.time_budget_s
    reason = f"{num_levels} levels, until the patch is 4 voxels wide or the device is full"
    if facts.machine.device != "cpu":
        if tuple(widths) != GPU_WIDTHS:
            reason += f"; narrower than nnU-Net's {GPU_WIDTHS[0]}, which needs more memory than is free here"
    elif budget_s >= LONG_BUDGET_S:
        reason += f"; {budget_s / 60:.0f} minutes are enough to train a wider finest level, at 1.5 times slower steps"
    elif tuple(widths) == _STEM_WIDTHS:
        reason += "; few features, because the run is short"
    else:
        reason += "; a narrow finest level, because a CPU spends most of a step there"
    facts.settle("network.widths", list(widths[:num_levels]), reason)


def _settle_batch(facts: PlanFacts, size: StepSize | None, most_voxels: int) -> None:
    """Patches in a batch."""
    num_ranks = facts.machine.num_ranks
    if size is None:
        reason = "as in nnU-Net; on a CPU, a larger batch only means fewer steps"
        if num_ranks > 1:
            reason = f"two for each of {num_ranks} ranks: a single patch takes torch four times as long (docs/log)"
        facts.settle("data.batch_size", _LEAST_BATCH * num_ranks, reason)
    else:
        _settle_device_batch(facts, size, most_voxels)
    facts.settle(
        "data.patch.foreground_share",
        0.33,
        "as in nnU-Net, a third of the patches is centered on foreground, every class equally often",
    )
    facts.settle("data.patch.draws_per_case", 1, "one patch of each case per epoch")


def _on_device(facts: PlanFacts, shape: Vector, spacing: Vector, most: StepSize) -> tuple[PatchFit, Sequence[int], int]:
    """The largest patch, then the widest network, whose smallest batch fits the device; the smallest if none fits.

    Returns:
        Patch and strides, widths, and the most voxels that a patch may have.
    """
    given = facts.overrides.get("data.patch.shape_voxel")
    num_ranks = facts.machine.num_ranks
    batch_size = math.ceil(int(facts.overrides.get("data.batch_size", max(_LEAST_BATCH, num_ranks))) / num_ranks)
    for size in _sizes(shape, spacing, most.max_voxels, _given_strides(facts)):
        fit, widths, _ = size
        patch = given or fit.shape_voxel
        strides = fit.strides if given is None else strides_for(tuple(given), spacing, max_levels=len(GPU_WIDTHS))
        section = network_section(strides, widths, has_stem=most.has_stem)
        if _needed_bytes(facts, section | facts.section("network"), patch, batch_size) <= _free_device_bytes(facts):
            break
    return size


def _sizes(
    shape: Vector, spacing: Vector, most: int, given: Sequence[Index3]
) -> Iterator[tuple[PatchFit, Sequence[int], int]]:
    """Patches, widths and the most voxels of a patch, best first."""
    short, least = min(_SHORT_PATCH_VOXELS, most), _LEAST_PATCH_VOXELS
    for share, first, last in ((1, most, short), (2, short, short), (4, short, least)):
        widths = [width // share for width in GPU_WIDTHS]
        max_voxels = first
        while True:
            fit = fit_patch(shape, spacing, max_voxels=max_voxels, max_levels=len(widths), given=given)
            yield fit, widths, max_voxels
            if max_voxels <= last:
                break
            max_voxels = max(last, int(0.85 * max_voxels))


def _needed_bytes(facts: PlanFacts, network: dict[str, object], patch: Sequence[int], batch_size: int) -> int:
    """Device memory that training takes; 0 if keys do not fit together."""
    passed = patch_pass(facts, network, patch)
    return 0 if passed is None else device_bytes(passed, batch_size=batch_size)


def _free_device_bytes(facts: PlanFacts) -> int:
    """Free device memory besides the cases kept there; less if a trial has shown that it is not enough."""
    kept = int(facts.settled["data"]["cache"].get("device_max_bytes", 0))
    return min(facts.machine.device_free_bytes - kept, facts.room_bytes or facts.machine.device_free_bytes)


def _settle_device_batch(facts: PlanFacts, size: StepSize, most_voxels: int) -> None:
    """As many patches as fit the devices of all ranks, up to the size's for each rank, and at least one for each."""
    network, patch = facts.section("network"), facts.settled["data"]["patch"]["shape_voxel"]
    num_ranks = facts.machine.num_ranks
    least = max(_LEAST_BATCH, num_ranks)
    # More patches than cases would see one case twice in a step.
    most = max(least, size.batch_size, min(size.batch_size * num_ranks, facts.num_training))
    sizes = {n: _needed_bytes(facts, network, patch, math.ceil(n / num_ranks)) for n in range(least, most + 1)}
    free_bytes = _free_device_bytes(facts)
    batch = max((n for n, needed in sizes.items() if needed <= free_bytes), default=least)
    shared = f", shared by {num_ranks} ranks," if num_ranks > 1 else ""
    takes = f"{batch} patches{shared} take an estimated {sizes[batch] / _GIB:.1f} of the {free_bytes / _GIB:.1f} GiB"
    if sizes[batch] > free_bytes:
        reason = (
            f"does not fit: {takes} free on {facts.machine.device_name}, even at this size; training computes the "
            "patches one by one if that helps, and stops if it does not"
        )
    else:
        free = f"free on {facts.machine.device_name} (docs/plan.md says how this is counted)"
        reason = f"as many as fit, {least} to {most}: {takes} {free}"
        if batch == most and size.batch_size < MOST_BATCH:
            reason += f"; with more, fewer than {ENOUGH_STEPS} steps would fit into {sized_s(facts):.0f} s"
    facts.window_bytes = _window_bytes(facts, facts.section("window").get("shape_voxel", patch))
    facts.fits_graph = sizes[batch] + facts.window_bytes <= free_bytes
    given_up = [f"{most - batch} of {most} patches"] if batch < most else []
    given_up += _given_up(facts, size, most_voxels)
    reason += f"; given up for memory: {listed(given_up, 5)}" if given_up else ""
    value = math.ceil(int(facts.settle("data.batch_size", batch, reason)) / num_ranks)
    facts.planned_bytes = _needed_bytes(facts, network, patch, value)
    facts.fits_graph = facts.planned_bytes + facts.window_bytes <= free_bytes
    passed = patch_pass(facts, network, patch)
    if passed is not None:
        step_s, device_s = forecast_step_s(passed, facts.machine, batch_size=value)
        facts.forecast = Forecast(
            step_s=step_s, device_s=device_s, available_s=steps_s(facts), is_to_target=is_to_target(facts)
        )


def _given_up(facts: PlanFacts, size: StepSize, most_voxels: int) -> list[str]:
    """What the run would have on a card with more memory; `data.cache.device_max_bytes` says it of cases kept there."""
    widths, found = facts.settled["network"]["widths"], []
    if most_voxels < size.max_voxels:
        found.append(f"patches of {size.max_voxels:,} voxels")
    if "network.widths" not in facts.overrides and widths[0] < GPU_WIDTHS[0]:
        found.append(f"{GPU_WIDTHS[0]} features at the finest level")
    if not facts.fits_graph:
        found.append("a CUDA graph of the step")
    return found


def windows_at_once(facts: PlanFacts, *, most: int) -> tuple[int, str]:
    """Windows that a validation may compute at once on a GPU, at most `most`, and what limits them.

    A graph of the step keeps its memory while windows are computed, so they must fit into what it leaves; without one
    they take the memory that the step has freed.
    """
    is_graph = facts.settled["precision"]["step_graph"]
    shape = facts.settled["window"]["shape_voxel"]
    held_bytes = facts.planned_bytes if is_graph else _needed_bytes(facts, facts.section("network"), shape, 0)
    fit = max(1, (_free_device_bytes(facts) - held_bytes) // max(1, _window_bytes(facts, shape)))
    if fit >= most:
        return most, ""
    return fit, f"; {most} would not fit {'next to a graph of the step' if is_graph else 'into its memory'}"


def _window_bytes(facts: PlanFacts, shape_voxel: Sequence[int]) -> int:
    """Device memory that a window takes; 0 if keys do not fit together."""
    passed = patch_pass(facts, facts.section("network"), shape_voxel)
    return 0 if passed is None else window_bytes(passed)
