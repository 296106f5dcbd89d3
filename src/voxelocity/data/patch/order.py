"""In which order cases are visited: an endless stream of draws, cut into batches, computable for any step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from voxelocity.core.batch import Draw
from voxelocity.core.errors import DatasetError
from voxelocity.core.rng import generator


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
        self._num_cases_per_epoch = len(case_ids) if window is None else len(window(0))
        # Replaced as a whole, so that threads need no lock. Two, as a batch may span two epochs.
        self._recent: tuple[tuple[int, npt.NDArray[np.int64]], ...] = ()

    @property
    def num_draws_per_epoch(self) -> int:
        """Draws in one pass over the cases of an epoch."""
        return self._num_cases_per_epoch * self._draws_per_case

    @property
    def num_steps_per_epoch(self) -> float:
        """Steps in one pass over the cases; not a whole number where batches span epochs."""
        return self.num_draws_per_epoch / self._batch_size

    def epoch_of(self, step: int) -> int:
        """The epoch of the first draw of this step, from 0."""
        return step * self._batch_size // self.num_draws_per_epoch

    def draws(self, step: int) -> tuple[Draw, ...]:
        """The draws of this step, counted from 0, in the order of the batch."""
        assert step >= 0, f"step {step}"
        first = step * self._batch_size
        return tuple(self._draw(position) for position in range(first, first + self._batch_size))

    def _draw(self, position: int) -> Draw:
        epoch, place = divmod(position, self.num_draws_per_epoch)
        case, draw = divmod(int(self._permutation(epoch)[place]), self._draws_per_case)
        return Draw(case_id=self._case_ids[case], case=case, epoch=epoch, draw=draw)

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        """The epoch's draws in their order, each as `case * draws_per_case + draw`."""
        recent = self._recent
        for known, permutation in recent:
            if known == epoch:
                return permutation
        permutation = generator(self._seed, stage="order", epoch=epoch).permutation(self.num_draws_per_epoch)
        if self._window is not None:
            place, draw = np.divmod(permutation, self._draws_per_case)
            permutation = np.asarray(self._window(epoch), dtype=np.int64)[place] * self._draws_per_case + draw
        self._recent = (*recent[-1:], (epoch, permutation))
        return permutation
