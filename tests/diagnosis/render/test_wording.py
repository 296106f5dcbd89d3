import dataclasses
import math

import pytest

from voxelocity.diagnosis.render.wording import faster_text, few_steps_text, gain_text, pace, percent_text, title_text
from voxelocity.diagnosis.result import Finding

FINDING = Finding(
    code="VX101", title="", cause="", evidence=(), saves_s=6.0, of_s=10.0, basis="measured", risk="safe", change=""
)


@pytest.mark.parametrize(
    ("saves_s", "words"),
    [
        (6.0, "about 2.5 times faster (measured)"),
        (9.5, "about 20 times faster (measured)"),
        (9.99, "more than 100 times faster (measured)"),
        (0.5, "about 5 % less time (measured)"),
        (0.01, "barely faster (measured)"),
        (None, "gain unknown"),
    ],
)
def test_a_gain_is_told_in_words_and_figures(saves_s, words, example_diagnosis):
    facts = example_diagnosis("data-bound").facts
    assert gain_text(dataclasses.replace(FINDING, saves_s=saves_s), facts) == words


def test_a_gain_from_few_steps_says_so(example_diagnosis):
    facts = example_diagnosis("data-bound").facts
    few = dataclasses.replace(facts, steps=facts.counted[:9])
    assert gain_text(FINDING, few) == "about 2.5 times faster (measured, from only 9 steps)"
    assert few_steps_text(dataclasses.replace(facts, steps=facts.counted[:10])) == ""
    assert few_steps_text(dataclasses.replace(facts, steps=[])) == "", "then nothing is from steps"


def test_a_factor_just_below_the_least_reads_as_time_saved():
    assert faster_text(1.09, saved_share=0.083) == "about 8 % less time"


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (0.004, "<1 %"), (0.005, "0 %"), (0.305, "30 %"), (1, "100 %")]
)
def test_shares_read_as_whole_per_cent(share, text):
    assert percent_text(share) == text


def test_the_pace_is_of_all_watched_time(example_diagnosis):
    seen = pace(example_diagnosis("validation-bound"))
    assert seen.num_steps == 50
    assert seen.watched_s == pytest.approx(50 * 0.1 + 16.4, rel=0.02)
    assert seen.steps_per_s == pytest.approx(50 / seen.watched_s)
    assert seen.images_per_s == pytest.approx(200 / seen.watched_s)


def test_images_are_unknown_where_one_step_does_not_tell(example_diagnosis):
    diagnosis = example_diagnosis("clean")
    steps = [*diagnosis.facts.steps]
    steps[10] = dataclasses.replace(steps[10], num_images=None)
    facts = dataclasses.replace(diagnosis.facts, steps=steps)
    assert pace(dataclasses.replace(diagnosis, facts=facts)).images_per_s is None
    nothing = pace(example_diagnosis("nothing seen"))
    assert (nothing.steps_per_s, nothing.step_s, nothing.watched_s) == (None, None, 0)
    assert not math.isnan(nothing.watched_s)


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (["python", "/home/a/train.py", "--lr", "1e-3"], "python train.py"),
        (["/usr/bin/python3", "-u", "-m", "pkg.train", "x"], "python3 -u -m pkg.train"),
        (["python", "-W", "ignore", "a/train.py", "x"], "python -W ignore train.py"),
        (["./run.sh"], "run.sh"),
        (["runs/first/"], "first"),
        ([], "A program"),
    ],
)
def test_a_heading_names_program_and_script(example_diagnosis, command, title):
    facts = dataclasses.replace(example_diagnosis("clean").facts, command=command)
    assert title_text(facts) == title
