from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.core.records import CaseScore
from voxelocity.report import paired_trainings
from voxelocity.report.parity import (
    FOREGROUND,
    PairedDifference,
    accuracy_sentence,
    accuracy_tables,
    interval_of_mean,
    paired_parity,
    structure_sentences,
    worth_of_interval,
)


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
    ("low", "high", "judgment"),
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
def test_only_an_interval_within_the_margin_is_the_same_and_only_one_beyond_is_different(low, high, judgment):
    assert difference(low, high).judgment == judgment


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
    assert (tumour.low, tumour.judgment, tumour.margin) == (None, "undecided", 2.0)
    assert parity.overall.name == FOREGROUND
    assert parity.overall.first == pytest.approx((0.35 + 0.55) / 2)
    assert [row.name for row in parity.of("dice")] == ["liver", "tumour"]


def test_a_structure_that_no_pair_has_is_reported_without_figures():
    first = [score("a", 0.5, liver=None), score("b", 0.7, liver=1.0)]
    parity = paired_parity(first, [score("a", 0.5, liver=1.0), score("b", 0.7, liver=None)])
    (row,) = parity.of("hd95_mm")
    assert (row.n, row.num_unpaired, row.difference, row.judgment) == (0, 2, None, "undecided")


dice = st.floats(0.0, 1.0)


@given(st.lists(st.tuples(dice, dice), min_size=2, max_size=20))
def test_turning_the_trainings_round_turns_the_difference_round(pairs):
    first = [score(str(i), a) for i, (a, _) in enumerate(pairs)]
    second = [score(str(i), b) for i, (_, b) in enumerate(pairs)]
    one, other = paired_parity(first, second).overall, paired_parity(second, first).overall
    assert one.difference == pytest.approx(-other.difference)
    assert (one.low, one.high) == (pytest.approx(-other.high), pytest.approx(-other.low))
    assert one.low <= one.difference <= one.high
    assert one.judgment == other.judgment


def trained(*dice, hd95_mm=2.0):
    return [score(str(i), value, liver=hd95_mm) for i, value in enumerate(dice)]


def test_several_trainings_are_compared_over_trainings_and_not_over_their_cases():
    first = [trained(0.5, 0.7), trained(0.6, 0.8), trained(0.7, 0.9)]
    second = [trained(0.5, 0.7), trained(0.61, 0.81), trained(0.73, 0.93)]
    parity = paired_trainings(first, second)
    assert (parity.unit, parity.num_cases, parity.overall.n) == ("training", 2, 3)
    assert parity.overall.difference == pytest.approx((0.0 + 0.01 + 0.03) / 3)
    assert (parity.overall.low, parity.overall.high) == pytest.approx(interval_of_mean([0.0, 0.01, 0.03]))
    assert (parity.num_better, parity.num_worse, parity.extreme) == (2, 0, None)
    assert [(row.name, row.measure, row.n) for row in parity.structures] == [
        ("liver", "dice", 3),
        ("liver", "hd95_mm", 3),
    ]


def test_seeds_that_differ_are_not_taken_for_sure_because_their_cases_agree():
    first = [trained(0.5, 0.5, 0.5), trained(0.5, 0.5, 0.5)]
    second = [trained(0.46, 0.46, 0.46), trained(0.53, 0.53, 0.53)]
    assert [paired_parity(a, b).overall.judgment for a, b in zip(first, second, strict=True)] == ["different"] * 2
    assert paired_trainings(first, second).overall.judgment == "undecided"


def test_a_training_that_lacks_a_distance_makes_no_pair_of_it():
    parity = paired_trainings([trained(0.5), trained(0.5, hd95_mm=None)], [trained(0.5), trained(0.5)])
    (row,) = parity.of("hd95_mm")
    assert (row.n, row.num_unpaired) == (1, 1)


def test_a_single_pair_of_trainings_is_compared_over_its_cases_and_none_without_common_cases_at_all():
    assert paired_trainings([trained(0.5, 0.6)], [trained(0.5, 0.7)]).unit == "case"
    assert paired_trainings([trained(0.5), trained(0.5)], [trained(0.5), []]) is None


def scores(changes, names=("liver",), hd95_mm=2.0):
    return [
        CaseScore(
            case_id=f"case_{i}",
            dice=dict.fromkeys(names, 0.8 + change),
            hd95_mm=dict.fromkeys(names, None if hd95_mm is None else hd95_mm + change),
        )
        for i, change in enumerate(changes)
    ]


def parity_of(changes, **options):
    return paired_parity(scores([0.0] * len(changes)), scores(changes), **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            [0.004, -0.004, 0.002, -0.002],
            "Accuracy: the same within 0.01 mean foreground Dice (±0.000, 95 % interval -0.006 to +0.006, 4 paired",
        ),
        ([-0.004, -0.005, -0.004, -0.005], "4 paired cases). Within it, B is a little lower."),
        (
            [-0.05, -0.06, -0.05, -0.06],
            "Accuracy: different. B has a lower mean foreground Dice by more than 0.01 (-0.055, 95 % interval -0.064",
        ),
        ([0.05, 0.06, 0.05], "B has a higher mean"),
        (
            [-0.011, -0.012, -0.009, -0.01],
            "Accuracy: undecided. B has a lower mean foreground Dice, but whether by more than 0.01 is open (-0.011, ",
        ),
    ],
)
def test_the_sentence_says_where_the_interval_lies_and_the_direction_that_is_sure(changes, words):
    assert words in accuracy_sentence(parity_of(changes), "A", "B")


def test_no_significant_difference_is_not_called_equal():
    text = accuracy_sentence(parity_of([0.2, -0.2, 0.1, -0.1]), "A", "B")
    assert text == (
        "Accuracy: undecided. The interval of the mean foreground Dice lies neither within 0.01 nor beyond it (±0.000, "
        "95 % interval -0.291 to +0.291, 4 paired cases); more cases would decide."
    )


def test_a_single_case_gives_no_interval():
    assert accuracy_sentence(parity_of([0.03]), "A", "B") == (
        "Accuracy: undecided. Mean foreground Dice differs by +0.030, but on 1 case alone, which gives no interval."
    )
    empty = [CaseScore(case_id="a", dice={})]
    assert accuracy_sentence(paired_parity(empty, empty), "A", "B") == (
        "Accuracy: undecided, as no case that A and B have in common was scored."
    )


def test_structures_that_are_not_the_same_are_named():
    names = ("liver", "spleen", "tumour")
    first, second = scores([0.0] * 4, names), scores([0.001, -0.001, 0.001, -0.001], names, hd95_mm=None)
    for index, (near, far) in enumerate(zip((0.05, -0.05, 0.06, -0.06), (0.1, 0.11, 0.1, 0.11), strict=True)):
        changed = {**second[index].dice, "spleen": 0.8 + near, "tumour": 0.8 + far}
        second[index] = CaseScore(case_id=second[index].case_id, dice=changed)
    assert structure_sentences(paired_parity(first, second)) == (
        "By Dice 1 of 3 structures is the same within 0.01; different: tumour; undecided: spleen."
    )


def test_structures_that_are_all_the_same_are_counted():
    same = scores([0.0] * 4, ("liver", "spleen"))
    assert structure_sentences(paired_parity(same, same)) == (
        "By Dice all 2 structures are the same within 0.01. By HD95 all 2 structures are the same within 1 mm."
    )
    assert structure_sentences(parity_of([0.0, 0.0])) == "By HD95 it is the same within 1 mm."


def test_the_worth_of_an_interval_names_cases_the_seed_and_how_rough_few_cases_are():
    first, second = scores([0.0] * 5), scores([0.02, -0.01, 0.0, 0.03])
    text = worth_of_interval(paired_parity(first, second), "A", "B")
    assert text.startswith("4 cases of both are paired; 1 case was scored only in A and left out. ")
    assert "B is better in 2 of them and worse in 1." in text
    assert "The largest difference is +0.030, in case_3." in text
    assert "not between seeds, because there was one training each." in text
    assert "An interval of 4 cases is rough" in text
    assert "rough" not in worth_of_interval(parity_of(list(np.linspace(-0.01, 0.01, 12))), "A", "B")


def test_several_trainings_are_reported_as_such():
    trainings = [scores([change] * 4) for change in (0.0, 0.02, -0.02)]
    parity = paired_trainings([scores([0.0] * 4)] * 3, trainings)
    sentence = accuracy_sentence(parity, "A", "B")
    assert "3 pairs of trainings); more trainings would decide." in sentence
    text = worth_of_interval(parity, "A", "B")
    assert text.startswith("Each of the 3 pairs of trainings has one seed and is scored on 4 cases.")
    assert "B is better in 1 of them and worse in 1." in text
    assert "it shows the variation between seeds on these cases." in text
    assert "An interval of 3 pairs of trainings is rough" in text
    table = accuracy_tables(parity, "A", "B")[0]
    assert table.caption == "Dice by structure, paired by training"
    assert table.heads[5] == "Trainings"


def test_the_tables_have_a_row_for_each_structure_and_the_mean_of_all():
    names = ("liver", "tumour")
    dice, hd95 = accuracy_tables(paired_parity(scores([0.0] * 3, names), scores([0.01] * 3, names)), "A", "B")
    assert dice.heads == ["Structure", "A", "B", "Difference", "95 % interval", "Cases", "Within 0.01"]
    assert [row[0] for row in dice.rows] == ["all structures", "liver", "tumour"]
    assert dice.rows[1][:6] == ["liver", "0.800", "0.810", "+0.010", "+0.010 to +0.010", "3"]
    assert hd95.heads[-1] == "Within 1 mm"
    assert hd95.rows[0] == ["liver", "2.00", "2.01", "+0.01", "+0.01 to +0.01", "3", "yes: same"]


def test_a_measure_that_no_case_has_is_left_out():
    without = scores([0.0, 0.1], hd95_mm=None)
    (table,) = accuracy_tables(paired_parity(without, without), "A", "B")
    assert [row[0] for row in table.rows] == ["liver"], "the mean of one structure is that structure"


def test_worse_differences_are_not_in_the_color_of_better_ones():
    first = [score(case_id, 0.8, 0.5, liver=4.0) for case_id in "abc"]
    second = [score(case_id, 0.9, 0.4, liver=6.0) for case_id in "abc"]
    dice, hd95 = accuracy_tables(paired_parity(first, second), "A", "B")
    rows = [row[0] for row in dice.rows]
    assert dice.worse_cells == {(rows.index("tumour"), 3)}
    assert dice.even_cells == {(rows.index(FOREGROUND), 3)}
    assert dice.heads[3] == "Difference"
    assert hd95.worse_cells == {(0, 3)}
