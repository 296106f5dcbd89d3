"""The patch, the network and the batch: as large as the device allows, in the proportions of the median case."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxelocity.core.errors import ConfigError
from voxelocity.core.region import Index3
from voxelocity.planning.cache_rule import prepared_spacing_mm
from voxelocity.planning.facts import PlanFacts
from voxelocity.planning.memory_rule import device_bytes
from voxelocity.planning.precision_rule import planned_compute
from voxelocity.step import NetworkConfig

Vector = npt.NDArray[np.float64]

MEMORY_KEYS = (
    "data.patch.shape_voxel",
    "data.batch_size",
    "network.name",
    "network.stem_stride",
    "network.strides",
    "network.widths",
)
"""Keys that depend on the free memory of a device."""
GPU_PATCH_VOXELS = 128**3
"""nnU-Net's maximum."""
GPU_WIDTHS = (32, 64, 128, 256, 320, 320)
"""nnU-Net's widths, finest level first."""

CPU_PATCH_VOXELS = 64_000
"""With this many patch voxels, one training step of the planned network takes about 0.1 to 0.3 s on two cores."""
LONG_BUDGET_S = 600.0
"""On a CPU, a time budget from which on larger networks and stronger augmentation pay."""

# Of a DynUNet behind a stem on a CPU; the network has at least three levels.
_STEM_WIDTHS = (24, 48, 96)
_FEWEST_STRIDES = 2
_SMALLEST_FEATURE_MAP = 4
_GIB = 2**30
# If memory is short, patches shrink to the first size before networks become narrower: context is worth more.
_SHORT_PATCH_VOXELS, _LEAST_PATCH_VOXELS = 64**3, 24**3
_LEAST_BATCH, _MOST_BATCH = 2, 8


def settle_patch_and_network(facts: PlanFacts) -> None:
    """A patch as large as the device allows, in the proportions of the median case; as many levels as it allows."""
    on_cpu = facts.machine.device == "cpu"
    spacing = prepared_spacing_mm(facts)
    shape = np.array(facts.data.extent_mm.median) / spacing
    if facts.settled["data"]["prepare"]["crop"] == "nonzero":
        shape = np.maximum(shape * facts.data.crop_share ** (1 / 3), 1.0)
    max_levels = 4 if on_cpu else 6
    fit, widths, most = _on_cpu(facts, shape, spacing) if on_cpu else _on_device(facts, shape, spacing)
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
    name = _network_name(strides)
    if name == "dynunet":
        why = "nnU-Net's network, which learned the most per step in our comparison"
    else:
        why = "patches are too small for the three levels of DynUNet"
    name = facts.settle("network.name", name, why)
    if name == "dynunet":
        strides, widths = _settle_stem(facts, strides, widths)
    strides = facts.settle("network.strides", [list(s) for s in strides], "halves the axes of finest spacing first")
    _settle_widths(facts, widths, num_levels=len(strides) + 1)
    _settle_batch(facts)


def _on_cpu(facts: PlanFacts, shape: Vector, spacing: Vector) -> tuple[PatchFit, Sequence[int], int]:
    """Patch and widths by the cost of a step, and the maximum number of voxels in a patch."""
    long = facts.request.time_budget_s >= LONG_BUDGET_S
    widths = (16, 32, 64, 128) if long else (8, 32, 64, 128)
    return fit_patch(shape, spacing, max_voxels=CPU_PATCH_VOXELS, max_levels=len(widths)), widths, CPU_PATCH_VOXELS


def _settle_stem(
    facts: PlanFacts, strides: Sequence[Sequence[int]], widths: Sequence[int]
) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
    """Moves the first halving before the first level, so that short runs on a CPU spend no time at the finest level.

    Returns:
        Strides and widths of the remaining levels.
    """
    is_own = not facts.overrides.keys().isdisjoint({"network.strides", "network.widths"})
    on_cpu, is_long = facts.machine.device == "cpu", facts.request.time_budget_s >= LONG_BUDGET_S
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


def _settle_widths(facts: PlanFacts, widths: Sequence[int], *, num_levels: int) -> None:
    """Features of each level: nnU-Net's on a GPU that has room for them, fewer on a CPU or in a short run."""
    budget_s = facts.request.time_budget_s
    reason = f"{num_levels} levels, until the patch is 4 voxels wide or the device is full"
    if facts.machine.device != "cpu":
        if tuple(widths) != GPU_WIDTHS:
            reason += f"; narrower than nnU-Net's {GPU_WIDTHS[0]}, which needs more memory than is free here"
    elif budget_s >= LONG_BUDGET_S:
        reason += f"; {budget_s / 60:.0f} minutes are enough to train a wider finest level, at 1.5 times slower steps"
    elif tuple(widths) == _STEM_WIDTHS:
        reason += "; few features, because the run is short for a CPU"
    else:
        reason += "; a narrow finest level, because a CPU spends most of a step there"
    facts.settle("network.widths", list(widths[:num_levels]), reason)


def _settle_batch(facts: PlanFacts) -> None:
    """Patches in a batch."""
    num_ranks = facts.machine.num_ranks
    if facts.machine.device == "cpu":
        reason = "as in nnU-Net; on a CPU a larger batch only means fewer steps"
        if num_ranks > 1:
            reason = f"two for each of {num_ranks} ranks: a single patch takes torch four times as long (docs/log.md)"
        facts.settle("data.batch_size", _LEAST_BATCH * num_ranks, reason)
    else:
        _settle_device_batch(facts)
    facts.settle(
        "data.patch.foreground_share",
        0.33,
        "as in nnU-Net, a third of the patches is centered on foreground, every class equally often",
    )
    facts.settle("data.patch.draws_per_case", 1, "one patch of each case per epoch")


def _network_name(strides: Sequence[Sequence[int]]) -> str:
    """The network for this many levels."""
    return "dynunet" if len(strides) >= 2 else "unet"


def _on_device(facts: PlanFacts, shape: Vector, spacing: Vector) -> tuple[PatchFit, Sequence[int], int]:
    """The largest patch, then the widest network, whose smallest batch fits the device; the smallest if none fits.

    Returns:
        Patch and strides, widths, and the most voxels that a patch may have.
    """
    given = facts.overrides.get("data.patch.shape_voxel")
    for size in _sizes(shape, spacing):
        fit, widths, _ = size
        patch = given or fit.shape_voxel
        strides = fit.strides if given is None else strides_for(tuple(given), spacing, max_levels=len(GPU_WIDTHS))
        section = {
            "name": _network_name(strides),
            "strides": [list(s) for s in strides],
            "widths": widths[: len(strides) + 1],
        }
        num_ranks = facts.machine.num_ranks
        batch_size = math.ceil(int(facts.overrides.get("data.batch_size", max(_LEAST_BATCH, num_ranks))) / num_ranks)
        if _needed_bytes(facts, section | facts.section("network"), patch, batch_size) <= _room_bytes(facts):
            break
    return size


def _sizes(shape: Vector, spacing: Vector) -> Iterator[tuple[PatchFit, Sequence[int], int]]:
    """Patches, widths and the most voxels of a patch, best first."""
    short, least = _SHORT_PATCH_VOXELS, _LEAST_PATCH_VOXELS
    for share, first, last in ((1, GPU_PATCH_VOXELS, short), (2, short, short), (4, short, least)):
        widths = [width // share for width in GPU_WIDTHS]
        max_voxels = first
        while True:
            yield fit_patch(shape, spacing, max_voxels=max_voxels, max_levels=len(widths)), widths, max_voxels
            if max_voxels <= last:
                break
            max_voxels = max(last, int(0.85 * max_voxels))


def _needed_bytes(facts: PlanFacts, network: dict[str, object], patch: Sequence[int], batch_size: int) -> int:
    """Device memory that training takes; 0 if keys do not fit together, which the check of the plan reports."""
    try:
        config = NetworkConfig.parse(network)
    except ConfigError:
        return 0
    x, y, z = patch
    return device_bytes(
        config,
        patch_voxel=(x, y, z),
        batch_size=batch_size,
        num_channels=len(facts.data.channels),
        num_classes=facts.data.num_outputs,
        is_half=planned_compute(facts) != "float32",
    )


def _room_bytes(facts: PlanFacts) -> int:
    """Free device memory besides the cases kept there; less if a trial has shown that it is not enough."""
    kept = int(facts.settled["data"]["cache"].get("device_max_bytes", 0))
    return min(facts.machine.device_free_bytes - kept, facts.room_bytes or facts.machine.device_free_bytes)


def _settle_device_batch(facts: PlanFacts) -> None:
    """As many patches as fit the devices of all ranks, 2 to 8, and at least one for each."""
    network, patch = facts.section("network"), facts.settled["data"]["patch"]["shape_voxel"]
    num_ranks = facts.machine.num_ranks
    least, most = max(_LEAST_BATCH, num_ranks), max(_MOST_BATCH, num_ranks)
    sizes = {n: _needed_bytes(facts, network, patch, math.ceil(n / num_ranks)) for n in range(least, most + 1)}
    room = _room_bytes(facts)
    batch = max((n for n, needed in sizes.items() if needed <= room), default=least)
    shared = f", shared by {num_ranks} ranks," if num_ranks > 1 else ""
    takes = f"{batch} patches{shared} take an estimated {sizes[batch] / _GIB:.1f} of the {room / _GIB:.1f} GiB"
    if sizes[batch] > room:
        reason = (
            f"does not fit: {takes} free on {facts.machine.device_name}, even at this size; training computes the "
            "patches one by one if that helps, and stops if it does not"
        )
    else:
        free = f"free on {facts.machine.device_name} (docs/plan.md says how this is counted)"
        reason = f"as many as fit, {least} to {most}: {takes} {free}"
    value = facts.settle("data.batch_size", batch, reason)
    facts.planned_bytes = _needed_bytes(facts, network, patch, math.ceil(int(value) / num_ranks))


@dataclass(frozen=True, kw_only=True)
class PatchFit:
    """A patch and the strides that suit it. `divisor` is the product of the strides, axis by axis."""

    shape_voxel: Index3
    strides: tuple[Index3, ...]
    divisor: Index3


def fit_patch(shape_voxel: Vector, spacing_mm: Vector, *, max_voxels: int, max_levels: int) -> PatchFit:
    """The largest patch of at most about `max_voxels` that is no longer than the median case and near-cubic in mm.

    As nnU-Net plans it (Isensee et al. 2021): an axis is halved while at least four voxels remain and its spacing is
    not yet twice as coarse as the finest. Axes are rounded to the nearest multiple of the network's divisor: on
    hippocampus, 32 x 48 x 32 learned as much per step as 40 x 56 x 40, which covers the whole median case, in two
    thirds of the time (docs/log.md).
    """
    whole = np.maximum(np.ceil(shape_voxel - 0.01), 1.0)
    ideal = whole if whole.prod() <= max_voxels else _near_cube(whole, spacing_mm, max_voxels)
    strides = _halvings(ideal, spacing_mm, max_levels, only_even=False)
    divisor = np.prod(np.array(strides, dtype=int).reshape(-1, 3), axis=0)
    multiples = np.maximum(np.round(ideal / divisor), 1.0)
    return PatchFit(shape_voxel=_index3(multiples * divisor), strides=strides, divisor=_index3(divisor))


def strides_for(patch_voxel: Index3, spacing_mm: Vector, *, max_levels: int) -> tuple[Index3, ...]:
    """The strides that suit a given patch: by the same rule, but halving only even numbers."""
    return _halvings(np.array(patch_voxel, dtype=np.float64), spacing_mm, max_levels, only_even=True)


def _near_cube(whole: Vector, spacing_mm: Vector, max_voxels: int) -> Vector:
    low, high = 0.0, float((whole * spacing_mm).max())
    for _ in range(50):
        side_mm = (low + high) / 2
        voxels = np.minimum(whole, side_mm / spacing_mm).prod()
        low, high = (side_mm, high) if voxels <= max_voxels else (low, side_mm)
    return np.maximum(np.minimum(whole, low / spacing_mm), 1.0)


def _halvings(shape: Vector, spacing_mm: Vector, max_levels: int, *, only_even: bool) -> tuple[Index3, ...]:
    size, spacing = np.ceil(shape), spacing_mm.astype(float).copy()
    strides: list[Index3] = []
    while len(strides) < max_levels - 1:
        large = size / 2 >= _SMALLEST_FEATURE_MAP
        if only_even:
            large &= size % 2 == 0
        fine = spacing < 2.0 * spacing[large].min(initial=np.inf)
        halved = large & fine
        if not halved.any():
            break
        size, spacing = np.where(halved, np.ceil(size / 2), size), np.where(halved, spacing * 2, spacing)
        strides.append(_index3(np.where(halved, 2, 1)))
    # A network needs at least two levels; an axis of one voxel stays unchanged.
    return tuple(strides) or ((1, 1, 1),)


def _index3(values: npt.NDArray[np.float64] | npt.NDArray[np.int_]) -> Index3:
    x, y, z = (int(v) for v in values)
    return (x, y, z)
