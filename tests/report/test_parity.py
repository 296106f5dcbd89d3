import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.records import CaseScore
from voxelocity.report import mean_scores, paired_parity
from voxelocity.report.parity import FOREGROUND, PairedDifference, interval_of_mean


def score(case_id, liver, tumour=None, /, **hd95_mm):
    dice = {"liver": liver} | ({} if tumour is None else {"tumour": tumour})
    return CaseScore(case_id=case_id, dice=dice, hd95_mm=hd95_mm)


def difference(low, high, margin=0.01):
    return PairedDifference(
        name="a", measure="dice", n=5, num_unpaired=0, first=0.5, second=0.5, difference=0.0, low=low, high=high,
        margin=margin,
    )  # fmt: skip


def test_the_interval_is_that_of_students_t():
    # Tables give t(0.975, 4) = 2.776; the deviation of 1 to 5 is 1.5811.
    assert interval_of_mean([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx((3 - 1.963, 3 + 1.963), abs=1e-3)


def test_one_value_has_no_interval_and_equal_values_have_one_without_width():
    assert interval_of_mean([1.0]) is None
    assert interval_of_mean([0.25, 0.25, 0.25]) == (0.25, 0.25)


@pytest.mark.parametrize(
    ("low", "high", "judgement"),
    [
        (-0.01, 0.01, "same"),
        (0.001, 0.009, "same"),
        (0.011, 0.2, "different"),
        (-0.3, -0.02, "different"),
        (-0.02, 0.005, "undecided"),
        (0.005, 0.02, "undecided"),
        (-0.02, 0.02, "undecided"),
        (None, None, "undecided"),
    ],
)
def test_only_an_interval_within_the_margin_is_the_same_and_only_one_beyond_is_different(low, high, judgement):
    assert difference(low, high).judgement == judgement


def test_cases_are_paired_by_their_ids_whatever_their_order():
    first = [score("a", 0.5), score("b", 0.9), score("only", 0.1)]
    second = [score("b", 0.8), score("a", 0.7)]
    parity = paired_parity(first, second)
    assert (parity.num_cases, parity.num_only_first, parity.num_only_second) == (2, 1, 0)
    assert parity.overall.difference == pytest.approx(0.05)
    assert (parity.num_better, parity.num_worse) == (1, 1)
    assert parity.extreme == ("a", pytest.approx(0.2))
    assert paired_parity(first, [score("x", 1.0)]) is None


def test_each_structure_is_compared_in_both_measures_and_what_is_not_there_is_no_pair():
    first = [score("a", 0.5, 0.2, liver=4.0, tumour=None), score("b", 0.7, 0.4, liver=2.0, tumour=9.0)]
    second = [score("a", 0.6, 0.3, liver=3.0, tumour=5.0), score("b", 0.8, 0.6, liver=2.0, tumour=7.0)]
    parity = paired_parity(first, second, margin_mm=2.0)
    rows = {(row.name, row.measure): row for row in parity.structures}
    assert rows["liver", "dice"].difference == pytest.approx(0.1)
    assert rows["liver", "hd95_mm"].difference == pytest.approx(-0.5)
    tumour = rows["tumour", "hd95_mm"]
    assert (tumour.n, tumour.num_unpaired, tumour.first, tumour.second) == (1, 1, 9.0, 7.0)
    assert (tumour.low, tumour.judgement, tumour.margin) == (None, "undecided", 2.0)
    assert parity.overall.name == FOREGROUND
    assert parity.overall.first == pytest.approx((0.35 + 0.55) / 2)
    assert [row.name for row in parity.of("dice")] == ["liver", "tumour"]


def test_a_structure_that_no_pair_has_is_told_without_figures():
    first = [score("a", 0.5, liver=None), score("b", 0.7, liver=1.0)]
    parity = paired_parity(first, [score("a", 0.5, liver=1.0), score("b", 0.7, liver=None)])
    (row,) = parity.of("hd95_mm")
    assert (row.n, row.num_unpaired, row.difference, row.judgement) == (0, 2, None, "undecided")


dice = st.floats(0.0, 1.0)


@given(st.lists(st.tuples(dice, dice), min_size=2, max_size=20))
def test_turning_the_trainings_round_turns_the_difference_round(pairs):
    first = [score(str(i), a) for i, (a, _) in enumerate(pairs)]
    second = [score(str(i), b) for i, (_, b) in enumerate(pairs)]
    one, other = paired_parity(first, second).overall, paired_parity(second, first).overall
    assert one.difference == pytest.approx(-other.difference)
    assert (one.low, one.high) == (pytest.approx(-other.high), pytest.approx(-other.low))
    assert one.low <= one.difference <= one.high
    assert one.judgement == other.judgement


def test_trainings_are_averaged_case_by_case_and_a_figure_that_one_lacks_is_left_out():
    one = [score("a", 0.4, liver=2.0), score("b", 0.6, liver=1.0), score("c", 1.0)]
    other = [score("b", 0.8, liver=None), score("a", 0.6, liver=4.0)]
    assert mean_scores([one, other]) == (score("a", 0.5, liver=3.0), score("b", 0.7))
    assert mean_scores([one]) == tuple(one)
