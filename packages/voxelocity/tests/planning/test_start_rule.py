"""What a plan takes from the model that a run starts from, and what it leaves to the other rules."""

import pytest

from shared.plan_facts import fingerprint, machine, plan_facts
from voxelocity.planning.facts import Start
from voxelocity.planning.rules import RULES
from voxelocity.planning.start_rule import fit_to, start_keys

NETWORK = {"network.name": "dynunet", "network.widths": [8, 16, 32], "network.strides": [[2, 2, 2]] * 2}
WINDOW = {"mode": "window", "low": -100.0, "high": 200.0, "mean": 40.0, "std": 60.0}


def settled(start, *, data=None, overrides=None):
    """The choices for a run that starts from this model, by key."""
    keys, reasons = start_keys(start)
    facts = plan_facts(
        data or fingerprint(), machine(), overrides, kept=keys, kept_reasons=reasons, start=start, time_budget_s=60.0
    )
    for rule in RULES:
        rule(facts)
    return {choice.key: choice for choice in facts.choices}


def source(**keys):
    return Start(name="runs/a", keys={**NETWORK, **keys}, patch=(32, 48, 32), divisor=(4, 4, 4))


def test_network_and_patch_are_taken_over_with_the_reason():
    found = settled(source())
    for key, value in NETWORK.items():
        assert found[key].value == value
        assert found[key].reason == "taken from runs/a, which this run starts from"
    assert found["data.patch.shape_voxel"].value == found["window.shape_voxel"].value == [32, 48, 32]


def test_a_trained_network_has_the_learning_rate_of_a_new_one_with_the_reason():
    new, tuned = (settled(start)["optimizer.learning_rate"] for start in (None, source()))
    assert tuned.value == new.value
    assert tuned.reason.startswith(f"{new.reason}; not reduced for fine-tuning")


def test_values_of_the_user_win_and_what_the_model_has_is_said():
    found = settled(source(), overrides={"network.widths": [4, 8, 16], "data.patch.shape_voxel": [16, 16, 16]})
    assert found["network.widths"].value == [4, 8, 16]
    assert found["network.widths"].reason == "set by you; runs/a, which this run starts from, has (8, 16, 32)"
    # The windows of a prediction are those of the training.
    assert found["window.shape_voxel"].value == [16, 16, 16]
    replaced = Start(name="runs/a", replaced=NETWORK)
    assert (
        "runs/a, which this run starts from, has dynunet"
        in settled(replaced, overrides={"network.name": "unet"})["network.name"].reason
    )


@pytest.mark.parametrize(
    ("spacing_mm", "is_taken"),
    [([1.5, 1.5, 1.5], True), ([0.7, 0.7, 0.7], True), ([3, 3, 3], False), ([1, 1, 5], False)],
)
def test_a_spacing_is_taken_over_unless_it_is_far_from_that_of_the_cases(spacing_mm, is_taken):
    found = settled(source(**{"data.prepare.spacing_mm": spacing_mm}))["data.prepare.spacing_mm"]
    assert found.value == (spacing_mm if is_taken else [1.0, 1.0, 1.0])
    assert ("too different" in found.reason) is not is_taken


def test_a_window_for_ct_is_not_taken_over_for_other_scans():
    start = source(**{f"data.prepare.intensity.{key}": value for key, value in WINDOW.items()})
    found = settled(start)["data.prepare.intensity.mode"]
    assert found.value == "zscore"
    assert "the window of runs/a is for CT numbers" in found.reason
    found = settled(start, data=fingerprint(channels=("CT",)))
    assert {key: found[f"data.prepare.intensity.{key}"].value for key in WINDOW} == WINDOW


@pytest.mark.parametrize(
    ("patch", "divisor", "shape", "most", "expected"),
    [
        ((32, 48, 32), (8, 8, 8), (100, 100, 100), 1e9, (32, 48, 32)),
        # No longer than the cases, and multiples for the network.
        ((96, 96, 96), (16, 16, 16), (35, 50, 36), 1e9, (48, 64, 48)),
        # A patch for a GPU becomes smaller where it is longest.
        ((128, 128, 64), (16, 16, 16), (500, 500, 500), 64 * 64 * 64, (64, 64, 64)),
        # Two voxels are left at the coarsest level.
        ((16, 16, 16), (16, 16, 16), (10, 10, 10), 1e9, (32, 16, 16)),
        ((32, 32, 32), (16, 16, 16), (100, 100, 100), 1, (32, 16, 16)),
    ],
)
def test_a_patch_fits_the_cases_the_machine_and_the_network(patch, divisor, shape, most, expected):
    assert fit_to(patch, divisor, shape, most) == expected
