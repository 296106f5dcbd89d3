import numpy as np

from voxelocity.core.records import CaseScore
from voxelocity.report import paired_trainings
from voxelocity.report.accuracy import (
    accuracy_sentence,
    accuracy_tables,
    structure_sentences,
    worth_of_interval,
)
from voxelocity.report.parity import paired_parity


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


def test_an_interval_within_the_margin_is_called_the_same():
    assert accuracy_sentence(parity_of([0.004, -0.004, 0.002, -0.002]), "A", "B") == (
        "Accuracy: the same within 0.01 mean foreground Dice (±0.000, 95 % interval -0.006 to +0.006, 4 paired cases)."
    )


def test_a_difference_that_is_sure_but_within_the_margin_is_told_beside():
    text = accuracy_sentence(parity_of([-0.004, -0.005, -0.004, -0.005]), "A", "B")
    assert text.startswith("Accuracy: the same within 0.01")
    assert text.endswith("Within it, B is a little lower.")


def test_an_interval_beyond_the_margin_is_called_different_with_its_direction():
    assert accuracy_sentence(parity_of([-0.05, -0.06, -0.05, -0.06]), "A", "B").startswith(
        "Accuracy: different. B has a lower mean foreground Dice by more than 0.01 (-0.055, 95 % interval -0.064 to "
    )
    assert "B has a higher mean" in accuracy_sentence(parity_of([0.05, 0.06, 0.05]), "A", "B")


def test_no_significant_difference_is_not_called_equal():
    text = accuracy_sentence(parity_of([0.2, -0.2, 0.1, -0.1]), "A", "B")
    assert text == (
        "Accuracy: undecided. The interval of the mean foreground Dice lies neither within 0.01 nor beyond it (±0.000, "
        "95 % interval -0.291 to +0.291, 4 paired cases); more cases would tell."
    )


def test_a_direction_that_is_sure_is_told_where_the_margin_leaves_it_open():
    text = accuracy_sentence(parity_of([-0.011, -0.012, -0.009, -0.01]), "A", "B")
    assert text.startswith(
        "Accuracy: undecided. B has a lower mean foreground Dice, but whether by more than 0.01 is open (-0.011, 95 % "
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
    assert text.startswith("4 cases of both are paired; 1 case was judged only in A and left out. ")
    assert "B is better in 2 of them and worse in 1." in text
    assert "The largest difference is +0.030, in case_3." in text
    assert "not what another seed would, as there was one training each." in text
    assert "An interval of 4 cases is rough" in text


def test_many_cases_are_not_called_rough():
    assert "rough" not in worth_of_interval(parity_of(list(np.linspace(-0.01, 0.01, 12))), "A", "B")


def test_several_trainings_are_told_as_such():
    trainings = [scores([change] * 4) for change in (0.0, 0.02, -0.02)]
    parity = paired_trainings([scores([0.0] * 4)] * 3, trainings)
    sentence = accuracy_sentence(parity, "A", "B")
    assert "3 pairs of trainings); more trainings would tell." in sentence
    text = worth_of_interval(parity, "A", "B")
    assert text.startswith("Each of the 3 pairs of trainings has one seed and is judged on 4 cases.")
    assert "B is better in 1 of them and worse in 1." in text
    assert "it says what other seeds would give on these cases." in text
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
