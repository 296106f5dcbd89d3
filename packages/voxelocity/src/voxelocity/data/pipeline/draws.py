"""What a training process draws at each step: its share of the configured order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from voxelocity.core.batch import Draw
from voxelocity.data.cache import RotatingSchedule
from voxelocity.data.patch import CaseOrder, PartitionedOrder, partition, share_of_rank
from voxelocity.data.pipeline.config import DataConfig
from voxelocity.data.pipeline.prepared import PreparedCases
from voxelocity_observe.core.errors import ConfigError

Window = Callable[[int], Sequence[int]]


class RankDraws:
    """Draws by step, of one of the processes that make a batch together.

    The shares of all ranks, one after the other, are the batch that one process alone would make. Stateless: safe to
    use from several threads, and any step may be requested.

    Args:
        prepared: the cases, the same ones in the same order on every rank.
        config: of the pipeline; `batch_size` counts the patches of all ranks together.
        seed: of the order.
        rank: of this process, from 0.
        world_size: processes.
        shares: patches of each of them; equal numbers if not given. `share_from` changes them.

    Attributes:
        window: the cases of an epoch, for a rotating cache; None where all are in use.

    Raises:
        DatasetError: there are no cases, or fewer than parts.
        ConfigError: there is no such rank, or the batch or the parts of the cache cannot be divided evenly.
        ScanError: with a cache in parts, a case's headers cannot be read.
    """

    def __init__(
        self,
        prepared: PreparedCases,
        config: DataConfig,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        shares: Sequence[int] = (),
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigError(
                f"feed: there is no rank {rank} of {world_size}; ranks count from 0 to world_size - 1, as torchrun's "
                "RANK does"
            )
        self._rank, self._world_size = rank, world_size
        # From which step on which shares hold; only ever made longer, as threads read it.
        self._shares: list[tuple[int, tuple[int, ...]]] = [(0, tuple(shares))]
        self.window: Window | None = None
        self._parts: tuple[tuple[int, ...], ...] = ()
        case_ids = [ref.case_id for ref in prepared.refs]
        self._order: CaseOrder | PartitionedOrder
        if config.cache.num_parts > 1:
            if len(set(shares)) > 1:
                raise ConfigError(
                    f"data.cache.num_parts = {config.cache.num_parts} needs equal pieces of a batch, not "
                    f"{', '.join(map(str, shares))}: a piece comes from the part of its rank; choose a data.batch_size "
                    f"that is a multiple of {world_size}, or num_parts = 1"
                )
            self._parts = _parts_of(prepared, config.cache.num_parts, world_size)
            self._order = PartitionedOrder(
                case_ids,
                self._parts,
                seed=seed,
                batch_size=config.batch_size,
                draws_per_case=config.patch.draws_per_case,
            )
        else:
            if config.cache.tier == "rotating":
                self.window = RotatingSchedule(
                    len(prepared),
                    num_cached=config.cache.num_cases,
                    replace_rate=config.cache.replace_rate,
                    seed=seed,
                ).window
            self._order = CaseOrder(
                case_ids,
                seed=seed,
                batch_size=config.batch_size,
                draws_per_case=config.patch.draws_per_case,
                window=self.window,
            )
        self._num_cases = len(prepared)
        # Fail now, not when a thread makes the first batch.
        self.draws(0)

    def draws(self, step: int) -> tuple[Draw, ...]:
        """This rank's draws of a step, counted from 0."""
        shares = next(shares for start, shares in reversed(self._shares) if start <= step)
        return share_of_rank(self._order.draws(step), self._rank, self._world_size, shares=shares)

    def share_from(self, step: int, shares: Sequence[int]) -> None:
        """Lets ranks take these numbers of patches from a step on; call it on every rank, before it draws that step."""
        self._shares.append((step, tuple(shares)))

    def epoch_of(self, step: int) -> int:
        """The pass over the cases that a step's batch begins in, from 0; the same on all ranks."""
        return self._order.epoch_of(step)

    def cases_from(self, step: int) -> tuple[int, ...]:
        """The indices of the cases that a training starting at this step needs first: all, or its share."""
        if self.window is not None:
            return tuple(self.window(self.epoch_of(step)))
        if not self._parts:
            return tuple(range(self._num_cases))
        per_rank = len(self._parts) // self._world_size
        own = self._parts[self._rank * per_rank : (self._rank + 1) * per_rank]
        return tuple(sorted(case for part in own for case in part))


def _parts_of(prepared: PreparedCases, num_parts: int, world_size: int) -> tuple[tuple[int, ...], ...]:
    if num_parts % world_size:
        raise ConfigError(
            f"data.cache.num_parts = {num_parts} is not valid for {world_size} ranks: each rank reads the same number "
            f"of whole parts; choose a multiple of {world_size}, or 1 to let every rank read every case"
        )
    return partition([prepared.most_bytes(index) for index in range(len(prepared))], num_parts)
