import itertools

from hypothesis import given
from hypothesis import strategies as st

from voxelocity.parallel import even_shares, shared_out, shares_by_time, shares_in_proportion

RANKS = st.integers(1, 9)


@given(num_items=st.integers(0, 100), num_ranks=RANKS)
def test_every_item_is_in_one_share_and_shares_differ_by_at_most_one(num_items, num_ranks):
    shares = even_shares(num_items, num_ranks)
    assert len(shares) == num_ranks
    assert sum(shares) == num_items
    assert max(shares) - min(shares) <= 1
    assert shares == tuple(sorted(shares, reverse=True))


@given(costs=st.lists(st.integers(0, 1000), max_size=30), num_ranks=RANKS)
def test_every_case_goes_to_one_rank_and_no_rank_has_more_than_the_largest_case_too_much(costs, num_ranks):
    shares = shared_out(costs, num_ranks)
    assert sorted(index for share in shares for index in share) == list(range(len(costs)))
    assert all(list(share) == sorted(share) for share in shares)
    sums = [sum(costs[index] for index in share) for share in shares]
    assert max(sums) - min(sums) <= max(costs, default=0)


@given(
    num_more=st.integers(0, 6),
    ranks=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(1, 8)), min_size=1, max_size=3),
)
def test_no_other_shares_let_the_slowest_rank_end_earlier(num_more, ranks):
    base_s, item_s, most = map(list, zip(*ranks, strict=True))
    num_items = len(ranks) + num_more
    found = shares_by_time(num_items, base_s=base_s, item_s=item_s, most=most)
    limits = most if sum(most) >= num_items else [num_items] * len(ranks)

    def slowest_s(shares):
        return max(base + share * item for base, share, item in zip(base_s, shares, item_s, strict=True))

    possible = [
        shares for shares in itertools.product(*(range(1, limit + 1) for limit in limits)) if sum(shares) == num_items
    ]
    assert found in possible
    assert slowest_s(found) == min(map(slowest_s, possible))


def test_shares_follow_proportions_and_leave_no_rank_without_a_patch():
    assert shares_in_proportion(5, [0.6, 0.4]) == (3, 2)
    assert shares_in_proportion(8, [11.0, 8.0]) == (5, 3)
    assert shares_in_proportion(3, [100.0, 1.0, 1.0]) == (1, 1, 1)
    assert shares_in_proportion(4, [100.0, 1.0]) == (3, 1)
