"""What the host does in a step: counted, not timed."""

import step_host


def test_a_replayed_step_leaves_the_host_a_handful_of_operations():
    found = step_host.measure("adamw", repeats=1)
    assert found["eager_operations"] > 100
    assert 0 < found["replayed_operations"] <= 8
    assert found["n"] == 1


def test_what_a_batch_takes_of_the_host_is_reported_by_part():
    found = step_host.measure_batch(repeats=5)
    assert set(found) == {"parameters_ms", "boxes_ms", "augment_ms", "all_ms", "low_ms", "n"}
    assert all(value > 0 for value in found.values())
