"""Work divided among ranks: patches of a batch, and cases by what they cost. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence


def even_shares(num_items: int, num_ranks: int) -> tuple[int, ...]:
    """How many items each rank takes: equal numbers, or one more for the first ranks."""
    least, more = divmod(num_items, num_ranks)
    return tuple(least + (rank < more) for rank in range(num_ranks))


def shared_out(costs: Sequence[float], num_ranks: int) -> tuple[tuple[int, ...], ...]:
    """Indices by rank, ascending, so that the costs of the ranks differ by no more than the largest cost.

    The most expensive first, each to the rank that has the least (Graham 1969, 10.1137/0117039). Depends only on its
    arguments. A rank has no index if there are fewer than ranks.
    """
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    taken = [0.0] * num_ranks
    for index in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        rank = min(range(num_ranks), key=lambda rank: (taken[rank], rank))
        shares[rank].append(index)
        taken[rank] += costs[index]
    return tuple(tuple(sorted(share)) for share in shares)


def shares_in_proportion(num_items: int, proportions: Sequence[float]) -> tuple[int, ...]:
    """How many items each rank takes: at least one, and so that no rank has much more than its proportion."""
    return shares_by_time(num_items, base_s=[0.0] * len(proportions), item_s=[1.0 / value for value in proportions])


def shares_by_time(
    num_items: int, *, base_s: Sequence[float], item_s: Sequence[float], most: Sequence[int] = ()
) -> tuple[int, ...]:
    """How many items each rank takes, at least one, so that the slowest rank ends as early as possible.

    Args:
        num_items: at least one for each rank.
        base_s: seconds of each rank whatever its number of items.
        item_s: seconds of each rank for an item.
        most: items that each rank has memory for; ignored if all ranks together have too little.
    """
    ranks = range(len(item_s))
    limits = list(most) if most and sum(most) >= num_items and min(most) >= 1 else [num_items] * len(item_s)
    shares = [1] * len(item_s)
    for _ in range(num_items - len(item_s)):
        free = (rank for rank in ranks if shares[rank] < limits[rank])
        next_rank = min(free, key=lambda rank: (base_s[rank] + (shares[rank] + 1) * item_s[rank], rank))
        shares[next_rank] += 1
    return tuple(shares)
