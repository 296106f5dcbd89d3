"""Which boxes of which cases are used for training or predicted. Reads no voxels.

Everything here is a pure function of the step, or of a random generator's state.

Several training processes (ranks) make a batch in one of two modes. In both, rank r takes the r-th share of it.

- Every rank may draw every case: the global batch is `CaseOrder`'s and does not depend on the number of ranks. For
  caches that all ranks reach: one copy per node (the memory tier) or a common disk.
- Every rank draws from its own part: the global batch is `PartitionedOrder`'s, which depends on the number of parts,
  not of ranks: four parts give the same batches to one rank, two or four. For caches of one rank each, so that a node
  holds only a part of the data set. A batch is less well mixed: each of its shares comes from one part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import Annotated, Generic, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from voxelocity.core.batch import Draw
from voxelocity.core.config import Config
from voxelocity.core.region import Index3, Region
from voxelocity.core.rng import generator
from voxelocity.core.volume import Array
from voxelocity_observe.core.errors import ConfigError, DatasetError

_Side = Annotated[int, Field(ge=1, le=4096)]


class PatchStage(Config):
    """An early part of a training, in which patches have a different shape."""

    until_share: float = Field(gt=0.0, lt=1.0)
    """Share of the training at which it ends."""
    shape_voxel: tuple[_Side, _Side, _Side]
    """Patch along (x, y, z) until then."""


class PatchConfig(Config):
    """How patches are chosen."""

    shape_voxel: tuple[_Side, _Side, _Side]
    """Patch along (x, y, z)."""
    foreground_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability that a patch is centered on a foreground voxel; other patches lie anywhere."""
    draws_per_case: int = Field(default=1, ge=1, le=10_000)
    """Patches taken from a case in one pass over the cases."""
    growth: tuple[PatchStage, ...] = ()
    """Other shapes, usually smaller ones, for the start of a training, one after the other; `shape_voxel` is the last.
    Steps on small patches are fast, and a network learns much from them (Fischer et al., arXiv:2510.23241)."""

    @model_validator(mode="after")
    def _stages_follow_each_other(self) -> Self:
        shares = [stage.until_share for stage in self.growth]
        if any(later <= earlier for earlier, later in pairwise(shares)):
            raise ValueError(f"growth ends its stages at {shares}; each until_share must be larger than the one before")
        return self

    @property
    def all_shapes(self) -> tuple[Index3, ...]:
        """Every shape that patches of a training have, each once, the first ones first."""
        return tuple(dict.fromkeys([*(stage.shape_voxel for stage in self.growth), self.shape_voxel]))

    def at(self, share: float) -> Self:
        """The configuration that applies when this share of the training is done."""
        for stage in self.growth:
            if share < stage.until_share:
                return self.model_copy(update={"shape_voxel": stage.shape_voxel})
        return self


_T = TypeVar("_T")


class _Recent(Generic[_T]):
    """What was made for the last two epochs, as a batch may span two. Safe to use from several threads."""

    def __init__(self, make: Callable[[int], _T]) -> None:
        self._make = make
        # Replaced as a whole, so that threads need no lock.
        self._made: tuple[tuple[int, _T], ...] = ()

    def __call__(self, epoch: int) -> _T:
        recent = self._made
        for known, made in recent:
            if known == epoch:
                return made
        made = self._make(epoch)
        self._made = (*recent[-1:], (epoch, made))
        return made


class CaseOrder:
    """Draws by step. In every epoch each of its cases comes `draws_per_case` times, in an order specific to that epoch.

    The stream has no gaps: a batch may hold the end of one epoch and the start of the next. It depends only on
    (seed, number of cases, draws_per_case, windows), so it is the same for any number of threads and any resume
    point. Safe to use from several threads.

    Args:
        case_ids: in the order of the case indices.
        seed: of the run.
        batch_size: draws in a step.
        draws_per_case: draws of one case in an epoch.
        window: the indices of an epoch's cases, the same number in every epoch; by default all cases.

    Raises:
        DatasetError: there are no cases.
    """

    def __init__(
        self,
        case_ids: Sequence[str],
        *,
        seed: int,
        batch_size: int,
        draws_per_case: int = 1,
        window: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        if not case_ids:
            raise DatasetError("patch.order: there are zero cases to draw from; add cases or change the split")
        assert batch_size >= 1
        assert draws_per_case >= 1
        self._case_ids = tuple(case_ids)
        self._seed = seed
        self._batch_size = batch_size
        self._draws_per_case = draws_per_case
        self._window = window
        self._num_draws_per_epoch = draws_per_case * (len(case_ids) if window is None else len(window(0)))
        self._permutation = _Recent(self._permuted)

    def epoch_of(self, step: int) -> int:
        """The epoch of the first draw of this step, from 0."""
        return step * self._batch_size // self._num_draws_per_epoch

    def draws(self, step: int) -> tuple[Draw, ...]:
        """The draws of this step, counted from 0, in the order of the batch."""
        assert step >= 0, f"step {step}"
        first = step * self._batch_size
        return tuple(self._draw(position) for position in range(first, first + self._batch_size))

    def _draw(self, position: int) -> Draw:
        epoch, place = divmod(position, self._num_draws_per_epoch)
        case, draw = divmod(int(self._permutation(epoch)[place]), self._draws_per_case)
        return Draw(case_id=self._case_ids[case], case=case, epoch=epoch, draw=draw)

    def _permuted(self, epoch: int) -> npt.NDArray[np.int64]:
        """The epoch's draws in their order, each as `case * draws_per_case + draw`."""
        permutation = generator(self._seed, stage="order", epoch=epoch).permutation(self._num_draws_per_epoch)
        if self._window is not None:
            place, draw = np.divmod(permutation, self._draws_per_case)
            permutation = np.asarray(self._window(epoch), dtype=np.int64)[place] * self._draws_per_case + draw
        return permutation


class PartitionedOrder:
    """Draws by step as in `CaseOrder`, each batch made of equal shares, one from each part of the cases.

    In every epoch each case of a part comes `draws_per_case` times. Parts with fewer cases than the largest fill up
    with extra draws of their own cases, different ones in the next epoch, so that all parts begin an epoch together.
    The stream depends only on its arguments. Safe to use from several threads.

    Args:
        case_ids: in the order of the case indices.
        parts: case indices by part, from `partition`.
        seed: of the run.
        batch_size: draws in a step, of all parts together.
        draws_per_case: draws of one case in an epoch, at least.

    Raises:
        ConfigError: the batch cannot be cut into one share for each part.
    """

    def __init__(
        self,
        case_ids: Sequence[str],
        parts: Sequence[Sequence[int]],
        *,
        seed: int,
        batch_size: int,
        draws_per_case: int = 1,
    ) -> None:
        assert all(parts), "every part has cases"
        assert draws_per_case >= 1
        if batch_size % len(parts):
            raise ConfigError(
                f"data.batch_size = {batch_size} is not valid for a cache in {len(parts)} parts: a batch takes the "
                f"same number of patches from each part; choose a multiple of {len(parts)}"
            )
        self._case_ids = tuple(case_ids)
        self._parts = tuple(tuple(part) for part in parts)
        self._seed = seed
        self._share_size = batch_size // len(parts)
        self._draws_per_case = draws_per_case
        self._draws_per_part = max(len(part) for part in self._parts) * draws_per_case
        self._epoch = _Recent(self._shuffled_parts)

    def epoch_of(self, step: int) -> int:
        """The epoch of the first draw of this step, from 0; the same in every part."""
        return step * self._share_size // self._draws_per_part

    def draws(self, step: int) -> tuple[Draw, ...]:
        """The draws of this step, counted from 0: the share of the first part, then of the second, and so on."""
        assert step >= 0, f"step {step}"
        first = step * self._share_size
        positions = [divmod(position, self._draws_per_part) for position in range(first, first + self._share_size)]
        return tuple(self._epoch(epoch)[part][place] for part in range(len(self._parts)) for epoch, place in positions)

    def _shuffled_parts(self, epoch: int) -> list[tuple[Draw, ...]]:
        return [self._shuffled(epoch, part) for part in range(len(self._parts))]

    def _shuffled(self, epoch: int, part: int) -> tuple[Draw, ...]:
        cases = self._parts[part]
        keys = [(case, draw) for case in cases for draw in range(self._draws_per_case)]
        num_extra = self._draws_per_part - len(keys)
        keys += [
            (cases[(epoch * num_extra + extra) % len(cases)], self._draws_per_case + extra // len(cases))
            for extra in range(num_extra)
        ]
        # The part replaces the case in the random key, so that no two parts shuffle alike.
        order = generator(self._seed, stage="order of a part", epoch=epoch, case=part).permutation(len(keys))
        return tuple(
            Draw(case_id=self._case_ids[case], case=case, epoch=epoch, draw=draw)
            for case, draw in (keys[int(place)] for place in order)
        )


def partition(sizes_bytes: Sequence[int], num_parts: int) -> tuple[tuple[int, ...], ...]:
    """Case indices by part: each case in one part, with numbers that differ by at most one and similar bytes.

    The bytes of two parts differ by no more than the largest case. Depends only on its arguments.

    Cases are dealt in rounds, largest first, and in each round the largest goes to the part that holds the fewest
    bytes; with equal sizes this balances only numbers.

    Raises:
        DatasetError: there are fewer cases than parts.
    """
    assert num_parts >= 1, f"num_parts {num_parts}"
    if len(sizes_bytes) < num_parts:
        raise DatasetError(
            f"data.cache.num_parts = {num_parts} is not valid for {len(sizes_bytes)} case(s): a part needs a case; "
            f"choose at most {len(sizes_bytes)}, or 1 to let every rank read every case"
        )
    largest_first = sorted(range(len(sizes_bytes)), key=lambda case: (-sizes_bytes[case], case))
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    held_bytes = [0] * num_parts
    for start in range(0, len(largest_first), num_parts):
        emptiest_first = sorted(range(num_parts), key=lambda part: (held_bytes[part], part))
        for part, case in zip(emptiest_first, largest_first[start : start + num_parts], strict=False):
            parts[part].append(case)
            held_bytes[part] += sizes_bytes[case]
    return tuple(tuple(sorted(part)) for part in parts)


def share_of_rank(draws: Sequence[Draw], rank: int, num_ranks: int, *, shares: Sequence[int] = ()) -> tuple[Draw, ...]:
    """The draws of one rank: the rank-th of `num_ranks` pieces that together make up a global batch.

    Args:
        draws: of the batch.
        rank: of this process.
        num_ranks: processes.
        shares: the draws of each rank; equal pieces if not given.

    Raises:
        ConfigError: the batch cannot be cut into these pieces.
    """
    assert 0 <= rank < num_ranks, f"rank {rank} of {num_ranks}"
    if shares:
        assert len(shares) == num_ranks, f"{len(shares)} shares for {num_ranks} ranks"
        if sum(shares) != len(draws) or min(shares) < 1:
            raise ConfigError(
                f"data.batch_size = {len(draws)} cannot be cut into pieces of {', '.join(map(str, shares))}: each of "
                f"the {num_ranks} ranks needs at least one patch; choose a larger batch, or fewer ranks"
            )
        start = sum(shares[:rank])
        return tuple(draws[start : start + shares[rank]])
    if len(draws) % num_ranks:
        raise ConfigError(
            f"data.batch_size = {len(draws)} is not valid for {num_ranks} ranks: it counts the patches of all ranks "
            f"together; choose a multiple of {num_ranks}"
        )
    size = len(draws) // num_ranks
    return tuple(draws[rank * size : (rank + 1) * size])


Spread = Literal["monai", "even"]


def choose_region(
    shape: Index3, foreground: Mapping[int, Array], config: PatchConfig, rng: np.random.Generator
) -> Region:
    """A box of `config.shape_voxel` voxels.

    With probability `foreground_share` it is centered on a foreground voxel: first a class of the case is drawn, all
    equally likely so that rare classes count, then one of its voxels. Otherwise, and in cases without foreground, every
    position is equally likely. Along an axis where the volume is larger than the patch, the box stays inside, so a
    voxel near the border may lie off its center; elsewhere the box is centered and reaches beyond the volume.

    Args:
        shape: of the volume.
        foreground: per class index, flat (C-order) indices into `shape`; class 0 and empty classes are left out.
        config: shape and share.
        rng: source of all choices.
    """
    classes = sorted(index for index, voxels in foreground.items() if index != 0 and len(voxels) > 0)
    patch_shape = config.shape_voxel
    if rng.random() < config.foreground_share and classes:
        voxels = foreground[classes[int(rng.integers(len(classes)))]]
        center = np.unravel_index(int(voxels[int(rng.integers(len(voxels)))]), shape)
        wanted = [int(voxel) - side // 2 for voxel, side in zip(center, patch_shape, strict=True)]
    else:
        wanted = [int(rng.integers(max(n - side, 0) + 1)) for n, side in zip(shape, patch_shape, strict=True)]
    x, y, z = (_start_inside(*axis) for axis in zip(wanted, shape, patch_shape, strict=True))
    return Region((x, y, z), (x + patch_shape[0], y + patch_shape[1], z + patch_shape[2]))


def grid_regions(shape: Index3, patch_shape: Index3, overlap: float, *, spread: Spread = "monai") -> tuple[Region, ...]:
    """Boxes of one shape that together cover every voxel of a volume, z fastest.

    Neighbors start `patch * (1 - overlap)` voxels apart, rounded down; the last box of an axis is moved back to end
    with the volume. Where the volume is smaller than the patch, one centered box reaches beyond it. These are the
    positions of MONAI's `sliding_window_inference`.

    Args:
        shape: of the volume along (x, y, z).
        patch_shape: of the boxes.
        overlap: share of a box that its neighbor covers too, from 0 to below 1.
        spread: "even": as many boxes as needed, at equal distances from the first to the last, as in nnU-Net.

    Raises:
        ConfigError: the overlap is out of range, or a side is below 1.
    """
    if not 0.0 <= overlap < 1.0:
        raise ConfigError(f"patch.grid: overlap {overlap} is not valid; choose from 0 to below 1, for example 0.5")
    if min(*shape, *patch_shape) < 1:
        raise ConfigError(f"patch.grid: a volume of {shape} voxels cannot be covered by patches of {patch_shape}")
    starts = [axis_starts(n, side, overlap, spread=spread) for n, side in zip(shape, patch_shape, strict=True)]
    dx, dy, dz = patch_shape
    return tuple(Region((x, y, z), (x + dx, y + dy, z + dz)) for x, y, z in product(*starts))


def axis_starts(num_voxels: int, side: int, overlap: float, *, spread: Spread = "monai") -> list[int]:
    """The first voxels of the boxes along one axis, ascending; see `grid_regions`."""
    last = num_voxels - side
    if last <= 0:
        return [-(-last // 2)]
    if spread == "even":
        num_steps = math.ceil(last / (side * (1.0 - overlap)))
        return sorted({round(last / num_steps * step) for step in range(num_steps + 1)})
    stride = max(int(side * (1.0 - overlap)), 1)
    return [*range(0, last, stride), last]


def _start_inside(wanted: int, num_voxels: int, side: int) -> int:
    spare = num_voxels - side
    return min(max(wanted, 0), spare) if spare >= 0 else -(-spare // 2)
