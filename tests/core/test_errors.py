import pytest

from voxelocity.core.errors import did_you_mean, nearest_name

KEYS = ["data.batch_size", "step.learning_rate", "train.learning_rate"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("data.batchsize", "data.batch_size"),
        ("learning_rat", "step.learning_rate"),
        ("run.batch_size", "data.batch_size"),
    ],
)
def test_a_misspelled_key_is_answered_by_the_nearest_one(name, meant):
    assert did_you_mean(name, KEYS) == f"; did you mean '{meant}'?"


def test_another_word_is_no_misspelling():
    assert nearest_name("case", ["phase"]) is None
    assert did_you_mean("epochs", KEYS) == ""
