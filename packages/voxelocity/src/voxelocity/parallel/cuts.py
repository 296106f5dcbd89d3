"""Where a network of segments is cut into stages, so that the slowest is as quick as possible and each has room."""

from __future__ import annotations

from collections.abc import Sequence

from voxelocity_observe.core.errors import InputError


def cheapest_cuts(
    costs: Sequence[Sequence[float]],
    *,
    sizes: Sequence[Sequence[float]] | None = None,
    limits: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Where each stage after the first begins, so that the most expensive stage is as cheap as possible.

    Args:
        costs: for each stage, what each segment costs there.
        sizes: for each stage, the bytes of each segment.
        limits: for each stage, the bytes there are.

    Raises:
        InputError: there are fewer segments than stages, or no cuts are within the limits.
    """
    num_stages, num_segments = len(costs), len(costs[0])
    infinity = float("inf")
    # least[n] and where[n]: for the first n segments on the stages so far.
    least = [0.0] + [infinity] * num_segments
    where: list[list[int]] = []
    for stage in range(num_stages):
        best, begins = [infinity] * (num_segments + 1), [0] * (num_segments + 1)
        for stop in range(1, num_segments + 1):
            for start in range(stop):
                is_full = sizes is not None and limits is not None and sum(sizes[stage][start:stop]) > limits[stage]
                value = infinity if is_full else max(least[start], sum(costs[stage][start:stop]))
                if value < best[stop]:
                    best[stop], begins[stop] = value, start
        least = best
        where.append(begins)
    if least[num_segments] == infinity:
        few, full = "it has fewer segments than there are ranks", "with any split, a stage does not fit into memory"
        raise InputError(
            f"parallel: a network of {num_segments} segments cannot be split for {num_stages} ranks, because "
            f"{few if num_segments < num_stages else full}"
        )
    cuts, stop = [], num_segments
    for begins in reversed(where[1:]):
        stop = begins[stop]
        cuts.append(stop)
    return tuple(reversed(cuts))
