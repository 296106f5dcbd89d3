import json

import pytest

from voxelocity.bench.paired import Comparison, Figure, Side, compare


def comparison(better, *values, names=("ours", "peer", "third")):
    figures = [Figure(name=name, note="", values=tuple(v)) for name, v in zip(names, values, strict=False)]
    return Comparison(title="t", unit="u", better=better, figures=tuple(figures))


def test_sides_take_turns_and_no_side_always_begins():
    calls = []
    sides = [Side(name=name, once=lambda name=name: calls.append(name) or 1.0) for name in "abc"]
    compare("t", "u", "larger", sides, repeats=3, warmup=1)
    rounds = ["".join(calls[i : i + 3]) for i in range(0, 12, 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert {order[0] for order in rounds[1:]} == {"a", "b", "c"}


def test_rounds_of_warm_up_do_not_count():
    values = iter([100.0, 1.0, 2.0, 3.0])
    found = compare("t", "u", "larger", [Side(name="a", once=lambda: next(values))], repeats=3, warmup=1)
    assert found.figures[0].values == (1.0, 2.0, 3.0)
    assert found.figures[0].median == 2.0


def test_a_ratio_compares_the_same_round_and_not_the_medians():
    found = comparison("larger", [10.0, 40.0, 20.0], [5.0, 20.0, 1.0])
    assert found.ratios(found.figures[1]) == (2.0, 2.0, 20.0)


def test_where_smaller_is_better_the_ratio_is_turned_round():
    found = comparison("smaller", [2.0, 4.0], [6.0, 4.0])
    assert found.ratios(found.figures[1]) == (3.0, 1.0)


def test_ours_has_no_ratio_to_itself_and_none_to_a_side_that_was_not_run():
    found = comparison("larger", [1.0], [])
    assert found.ratios(found.figures[0]) == ()
    assert found.ratios(found.figures[1]) == ()


def test_a_side_that_cannot_run_is_kept_with_its_reason():
    sides = [Side(name="a", once=lambda: 1.0), Side(name="b", once=None, note="not installed: lmdb")]
    plain = compare("t", "u", "larger", sides, repeats=2).to_plain()
    assert plain["sides"][1] == {"name": "b", "note": "not installed: lmdb", "n": 0}


def test_plain_values_hold_median_spread_and_ratio():
    plain = comparison("larger", [1.0, 2.0, 6.0], [1.0, 1.0, 1.0]).to_plain()
    ours, peer = plain["sides"]
    assert ours == {"name": "ours", "note": "", "n": 3, "median": 2.0, "low": 1.0, "high": 6.0}
    assert peer["ours_better_by"] == {"median": 2.0, "low": 1.0, "high": 6.0}


def test_a_peer_that_came_to_nothing_gives_a_ratio_that_json_can_keep():
    plain = comparison("larger", [3.0], [0.0]).to_plain()
    assert json.loads(json.dumps(plain, allow_nan=False))["sides"][1]["ours_better_by"]["median"] is None


def test_two_sides_of_one_name_are_a_mistake_of_ours():
    sides = [Side(name="a", once=lambda: 1.0)] * 2
    with pytest.raises(AssertionError, match="one name"):
        compare("t", "u", "larger", sides, repeats=1)
