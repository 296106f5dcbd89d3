"""Algebra of stretches of time, against a plain account of every nanosecond."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from voxelocity_observe.diagnose.tracing.spans import innermost, length, parents, union, within

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: tuple(sorted(pair))), max_size=12)


def covered(some):
    return {moment for start, stop in some for moment in range(start, stop)}


@given(spans)
def test_a_union_covers_the_same_time_without_overlap(some):
    joined = union(some)
    assert covered(joined) == covered(some)
    assert length(joined) == len(covered(some))
    assert all(a[1] < b[0] for a, b in pairwise(joined))


@given(spans, spans)
def test_within_is_the_time_that_both_cover(some, limits):
    assert covered(within(union(some), union(limits))) == covered(some) & covered(limits)


def test_parents_and_innermost_follow_the_calls():
    calls = [(0, 100), (0, 40), (10, 20), (50, 90), (60, 70), (110, 120)]
    assert parents(calls) == [-1, 0, 1, 0, 3, -1]
    assert innermost(calls, [115, 65, 15, 30, 45, 105, 40, 5]) == [5, 4, 2, 1, 0, -1, 0, 1]
    assert innermost([], [3]) == [-1]
    assert parents([(5, 5), (5, 9)]) == [-1, -1]
