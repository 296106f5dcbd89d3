from voxelocity_observe.core.errors import did_you_mean


def test_a_slip_is_answered_by_the_name_that_was_meant_and_another_word_by_none():
    assert did_you_mean("run.batchsize", ["data.batch_size", "seed"]) == "; did you mean 'data.batch_size'?"
    assert did_you_mean("case", ["phase"]) == ""
