import pickle
from collections import Counter
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.errors import DatasetError
from voxelocity.data.patch import CaseOrder


def order(num_cases=5, batch_size=2, draws_per_case=1, seed=0):
    names = [f"case{number}" for number in range(num_cases)]
    return CaseOrder(names, seed=seed, batch_size=batch_size, draws_per_case=draws_per_case)


@given(num_cases=st.integers(1, 7), batch_size=st.integers(1, 9), draws_per_case=st.integers(1, 4))
def test_every_epoch_holds_every_draw_once(num_cases, batch_size, draws_per_case):
    per_epoch = num_cases * draws_per_case
    made = order(num_cases, batch_size, draws_per_case)
    draws = list(chain.from_iterable(made.draws(step) for step in range(-(-3 * per_epoch // batch_size))))[
        : 3 * per_epoch
    ]
    assert [draw.epoch for draw in draws] == [epoch for epoch in range(3) for _ in range(per_epoch)]
    assert all(draw.case_id == f"case{draw.case}" for draw in draws)
    assert Counter((draw.epoch, draw.case, draw.draw) for draw in draws) == Counter(
        (epoch, case, draw) for epoch in range(3) for case in range(num_cases) for draw in range(draws_per_case)
    )


@given(steps=st.lists(st.integers(0, 60), max_size=30), batch_size=st.integers(1, 12))
def test_a_step_is_the_same_in_whatever_order_steps_are_asked_for(steps, batch_size):
    in_turn = [order(batch_size=batch_size).draws(step) for step in range(61)]
    jumping = order(batch_size=batch_size)
    assert [jumping.draws(step) for step in steps] == [in_turn[step] for step in steps]


def test_epochs_and_seeds_have_orders_of_their_own():
    made = order(num_cases=50, batch_size=50)
    first, second = ([draw.case for draw in made.draws(step)] for step in (0, 1))
    other_seed = [draw.case for draw in order(num_cases=50, batch_size=50, seed=1).draws(0)]
    assert sorted(first) == sorted(second) == sorted(other_seed) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(other_seed)}) == 3


def test_stream_does_not_depend_on_the_batch_size():
    small, large = order(batch_size=1), order(batch_size=4)
    assert [draw for step in range(12) for draw in small.draws(step)] == [
        draw for step in range(3) for draw in large.draws(step)
    ]


def test_epoch_and_steps_per_epoch_are_known():
    made = order(num_cases=5, batch_size=2)
    assert made.num_steps_per_epoch == 2.5
    assert made.num_draws_per_epoch == 5
    assert [made.epoch_of(step) for step in range(6)] == [0, 0, 0, 1, 1, 2]
    assert made.draws(2)[0].epoch == 0
    assert made.draws(2)[1].epoch == 1


def test_only_two_permutations_are_kept():
    made = order(num_cases=3, batch_size=3)
    for step in range(10):
        made.draws(step)
    assert [epoch for epoch, _ in made._recent] == [8, 9]


def test_order_travels_to_another_process():
    made = order()
    made.draws(3)
    assert pickle.loads(pickle.dumps(made)).draws(7) == made.draws(7)


def test_no_cases_is_a_clear_error():
    with pytest.raises(DatasetError, match="zero cases to draw from; add cases"):
        CaseOrder([], seed=0, batch_size=1, draws_per_case=1)


@given(batch_size=st.integers(1, 9), draws_per_case=st.integers(1, 3))
def test_an_epoch_with_a_window_draws_its_cases_alone_and_each_as_often(batch_size, draws_per_case):
    def window(epoch):
        return [(epoch + place) % 7 for place in range(3)]

    made = CaseOrder(
        [f"case{number}" for number in range(7)],
        seed=0,
        batch_size=batch_size,
        draws_per_case=draws_per_case,
        window=window,
    )
    per_epoch = 3 * draws_per_case
    assert made.num_draws_per_epoch == per_epoch
    draws = list(chain.from_iterable(made.draws(step) for step in range(-(-5 * per_epoch // batch_size))))
    assert all(draw.case_id == f"case{draw.case}" for draw in draws)
    assert Counter((draw.epoch, draw.case, draw.draw) for draw in draws[: 5 * per_epoch]) == Counter(
        (epoch, case, draw) for epoch in range(5) for case in window(epoch) for draw in range(draws_per_case)
    )


def test_a_window_of_all_cases_changes_nothing():
    names = [f"case{number}" for number in range(6)]
    plain = CaseOrder(names, seed=3, batch_size=4, draws_per_case=2)
    windowed = CaseOrder(names, seed=3, batch_size=4, draws_per_case=2, window=lambda _: range(6))
    assert [plain.draws(step) for step in range(9)] == [windowed.draws(step) for step in range(9)]
