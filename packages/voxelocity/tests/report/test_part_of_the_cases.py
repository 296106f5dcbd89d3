"""A score of a part of the cases says so, and is compared on the cases that both runs judged."""

import itertools

import pytest
from report.conftest import write_run

from voxelocity.report import comparison_document, label_run, pair_runs, read_run
from voxelocity.report.differences import compare
from voxelocity.report.labeled import LabeledRun
from voxelocity.report.page import run_document
from voxelocity.report.summary import verdict


@pytest.fixture
def write(tmp_path):
    """Writes a run into a folder of its own."""
    numbers = itertools.count()
    return lambda **contents: write_run(tmp_path / f"run_{next(numbers)}", **contents)


def with_dice(scores, dice):
    return [{**case, "dice": dict.fromkeys(case["dice"], dice)} for case in scores]


def test_the_headline_says_how_many_of_the_held_out_cases_it_is_of(write, events, scores):
    run = read_run(write(events=events, scores=scores[:1]))
    assert " on 1 of 42 held-out cases after" in verdict(run)
    card = next(card for card in run_document(run).cards if card.name == "Mean Dice")
    assert "1 of 42 held-out cases only" in card.note
    whole = read_run(write(events=events, scores=scores))
    assert " on 42 held-out cases after" in verdict(whole)
    assert "held-out" not in next(card for card in run_document(whole).cards if card.name == "Mean Dice").note


def test_the_card_of_a_comparison_is_of_the_cases_of_both(write, events, scores, tmp_path):
    hard = [*with_dice(scores[:1], 0.9), *with_dice(scores[1:], 0.8)]
    first = read_run(write(events=events, scores=hard))
    second = read_run(write(events=events, scores=with_dice(scores[:1], 0.85)))
    pair = pair_runs(first, second)
    document = comparison_document(pair.runs, "two", parity=pair.parity, notices=pair.notices)
    card = next(card for card in document.cards if card.name.startswith("Final Dice"))
    # 0.85 of one case against a mean of 0.80 of all would look better.
    assert (card.name, card.value) == ("Final Dice, 1 case of both", "-0.050")
    assert "differs by -0.050" in document.verdict
    factors = {row["key"]: row for row in document.to_plain()["factors"]}
    assert round(factors["last_dice"]["values"][pair.runs[0].label], 3) == 0.9


def test_means_of_different_cases_have_no_difference(write, events, scores):
    first = read_run(write(events=events, scores=scores[:20]))
    second = read_run(write(events=events, scores=scores[20:]))
    pair = pair_runs(first, second)
    document = comparison_document(pair.runs, "two", parity=pair.parity, notices=pair.notices)
    assert pair.parity is None
    assert not any(card.name.startswith("Final Dice") for card in document.cards)
    assert "(on different cases)" in document.verdict
    # Nor have the best Dice on the way.
    (best,) = [row for row in document.to_plain()["factors"] if row["key"] == "best_dice"]
    assert None not in best["values"].values()
    assert [factor["value"] for factor in best["factors"].values()] == [None]


def test_of_three_runs_only_those_of_the_same_cases_have_a_difference():
    middle = {"dice_history": ((1.0, 0.7),), "judged": ("a", "b")}
    runs = [
        LabeledRun(label="one", final_dice=0.8, judged=("a", "b")),
        LabeledRun(label="two", final_dice=0.7, **middle),
        LabeledRun(label="three", final_dice=0.9, judged=("a", "c")),
    ]
    (row,) = [row for row in compare(runs) if row.key == "last_dice"]
    assert [factor.value for factor in row.factors] == [pytest.approx(-0.1), None]


def test_a_run_that_learned_nothing_has_no_figure_to_compare(write, events, scores):
    events[-1] |= {"unlearned": "it made no training step", "mean_dice": None}
    run = read_run(write(events=events, scores=scores))
    labeled = label_run(run, "it")
    assert (labeled.last_dice, labeled.best_dice, labeled.judged) == (None, None, ())
    assert "It has no score: it made no training step." in labeled.notes
