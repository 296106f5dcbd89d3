import json
import os

import pytest

from voxelocity.core.learning import ENOUGH_STEPS, FEWEST_STEPS, read_mark, steps_needed, unlearned


@pytest.mark.parametrize(("steps_of_a_pass", "needed"), [(1.0, FEWEST_STEPS), (33.3, 34), (5000.0, ENOUGH_STEPS)])
def test_a_pass_over_the_data_is_needed_within_limits(steps_of_a_pass, needed):
    assert steps_needed(steps_of_a_pass) == needed
    assert unlearned(needed, steps_of_a_pass=steps_of_a_pass) == ""
    assert f"only {needed - 1} training steps" in unlearned(needed - 1, steps_of_a_pass=steps_of_a_pass)


def test_no_step_and_one_step_are_said_in_words():
    assert "no training step, so its network is still random" in unlearned(0, steps_of_a_pass=8)
    assert "only 1 training step, too few to train a network" in unlearned(1, steps_of_a_pass=8)


def test_a_training_that_began_with_trained_weights_needs_one_step():
    assert "is still that of runs/first" in unlearned(0, steps_of_a_pass=8, started_from="runs/first")
    assert unlearned(1, steps_of_a_pass=8, started_from="runs/first") == ""


@pytest.mark.parametrize("content", ["", "[]", "{", json.dumps({"unlearned": 3}), json.dumps({"cases": []})])
def test_scores_without_a_mark_have_none(content, tmp_path):
    (tmp_path / "scores.json").write_text(content)
    assert read_mark(tmp_path / "scores.json") == ""
    assert read_mark(tmp_path / "none.json") == ""
    os.mkfifo(tmp_path / "pipe.json")
    assert read_mark(tmp_path / "pipe.json") == ""
