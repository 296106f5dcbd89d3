"""The request of `voxelocity.Feed`: which batches, for which rank, from which step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, TypedDict

import torch

from voxelocity.core.batch import PLAIN, ImageFormat
from voxelocity_observe.core.request import UserRequest


@dataclass(frozen=True, kw_only=True)
class FeedRequest(UserRequest):
    """Which batches of a pipeline a feed gives, and how."""

    CALL: ClassVar[str] = "vx.Feed"

    seed: int = 0
    """Of the order, the patches and the augmentation."""
    device: torch.device | str = "cpu"
    """Where batches end up; "cuda" is the current device of the thread that makes this object."""
    start_step: int = 0
    """The first batch to give; a resumed run passes the step it had reached."""
    rank: int = 0
    """Of this process among those that train together, from 0, as torchrun's `RANK`."""
    world_size: int = 1
    """Number of these processes. Each makes its share of a batch of `batch_size`, which is the same for any number of
    them; with `data.cache.num_parts` each reads and caches only its own part of the cases.
    """
    shares: Sequence[int] = ()
    """Patches of each rank in a batch; equal numbers if not given. With unequal ones, a mean over ranks, as DDP takes
    it of gradients, is not the mean over patches unless the loss accounts for it.
    """
    progress: Callable[[int], float] = lambda step: 1.0
    """The share of the training that is done before a step, 0 to 1, for `data.patch.growth`; called from several
    threads. Without it every patch has the last shape.
    """
    image_format: ImageFormat = PLAIN
    """How the step takes images, for batches that a CUDA device fills (`DataConfig.given_out`). Their values are those
    of float32, rounded once.
    """

    def _check(self) -> None:
        for name in ("seed", "start_step"):
            # Integral, as loops of users count in NumPy too.
            if not isinstance(value := getattr(self, name), Integral) or not 0 <= int(value) < 2**63:
                raise self.refusal("give a whole number from 0 to 2**63 - 1", name)


class FeedOptions(TypedDict, total=False):
    """The fields of `FeedRequest` as keywords."""

    seed: int
    device: torch.device | str
    start_step: int
    rank: int
    world_size: int
    shares: Sequence[int]
    progress: Callable[[int], float]
    image_format: ImageFormat
