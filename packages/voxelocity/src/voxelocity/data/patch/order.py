"""In which order cases are visited: an endless stream of draws, cut into batches, and which rank takes which.

Everything here is a pure function of the step.

Several training processes (ranks) make a batch in one of two modes. In both, rank r takes the r-th share of it.

- Every rank may draw every case: the global batch is `CaseOrder`'s and does not depend on the number of ranks. For
  caches that all ranks reach: one copy per node (the memory tier) or a common disk.
- Every rank draws from its own part: the global batch is `PartitionedOrder`'s, which depends on the number of parts,
  not of ranks: four parts give the same batches to one rank, two or four. For caches of one rank each, so that a node
  holds only a part of the data set. A batch is less well mixed: each of its shares comes from one part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from voxelocity.core.batch import Draw
from voxelocity.core.rng import generator
from voxelocity_observe.core.errors import ConfigError, DatasetError

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
