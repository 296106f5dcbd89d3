"""The numbers that dropout draws: a function of (seed, step), so that a resumed run draws what another would have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch

from voxelocity.core.rng import generator
from voxelocity_observe.core.device import numbered

# Of a batch; seeds count pieces rank by rank.
_MOST_PIECES = 1 << 16


class Dropout:
    """Seeds torch's generator for what the network draws in each step, unless it drew nothing in the first one.

    Args:
        seed: of the run.
        rank: ranks draw different numbers.
        device: where the network is.
    """

    def __init__(self, *, seed: int, rank: int, device: torch.device) -> None:
        self._seed, self._rank, self._device = seed, rank, device
        self._is_used = True

    def numbers(self, step: int, piece: int = 0) -> AbstractContextManager[None]:
        """A context for a pass of this step over a piece of its batch; torch's generator is as before behind it."""
        return self._seeded(step, piece) if self._is_used else nullcontext()

    @contextmanager
    def _seeded(self, step: int, piece: int) -> Iterator[None]:
        """Only the host reads and writes the generator's state, for CUDA too."""
        case = self._rank * _MOST_PIECES + piece
        seed = generator(self._seed, stage="dropout", draw=step, case=case).integers(2**63)
        is_cuda = self._device.type == "cuda"
        numbers = torch.cuda.default_generators[numbered(self._device).index] if is_cuda else torch.default_generator
        found = numbers.get_state()
        numbers.manual_seed(int(seed))
        first = numbers.get_state().numpy()
        try:
            yield
            self._is_used = not np.array_equal(numbers.get_state().numpy(), first)
        finally:
            numbers.set_state(found)
