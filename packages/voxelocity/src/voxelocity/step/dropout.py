"""The numbers that dropout draws: a function of (seed, step), so that a resumed run draws what another would have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from voxelocity.core.rng import generator
from voxelocity_observe.core.device import numbered

# Of a batch; seeds count pieces rank by rank.
_MOST_PIECES = 1 << 16


class Dropout:
    """Seeds torch's generator for the dropout of each step.

    Args:
        network: whose dropout layers are looked for.
        seed: of the run.
        rank: ranks draw different numbers.
        device: where the network is.
    """

    def __init__(self, network: torch.nn.Module, *, seed: int, rank: int, device: torch.device) -> None:
        self._seed, self._rank, self._device = seed, rank, device
        self._is_used = any(
            isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0.0 for module in network.modules()
        )

    def numbers(self, step: int, piece: int = 0) -> AbstractContextManager[None]:
        """A context for a pass of this step over a piece of its batch; torch's generator is as before behind it."""
        if not self._is_used:
            return nullcontext()
        case = self._rank * _MOST_PIECES + piece
        seed = generator(self._seed, stage="dropout", draw=step, case=case).integers(2**63)
        return _seeded(int(seed), self._device)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the device's generator within the block. Only the host reads and writes its state, for CUDA too."""
    is_cuda = device.type == "cuda"
    numbers = torch.cuda.default_generators[numbered(device).index] if is_cuda else torch.default_generator
    found = numbers.get_state()
    numbers.manual_seed(seed)
    try:
        yield
    finally:
        numbers.set_state(found)
