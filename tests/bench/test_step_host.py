"""What the host does in a step: counted, not timed."""

import step_host


def test_a_replayed_step_leaves_the_host_a_handful_of_operations():
    found = step_host.measure("adamw", repeats=1)
    assert found["eager_operations"] > 100
    assert 0 < found["replayed_operations"] <= 8
    assert found["n"] == 1
