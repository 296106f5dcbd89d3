"""Which keys set what, by arithmetic; that trainings follow them is tested in test_measure.py."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import yaml
from hypothesis import given

from voxelocity.tuning.auto3dseg.specs import AlgorithmSpecs
from voxelocity.tuning.auto3dseg.templates import (
    DATA_ON,
    PATCHES,
    WINDOWS,
    OwnSettings,
    algorithm_knobs,
    named_rate,
    read_parameters,
    written_keys,
)
from voxelocity_observe.core.errors import InputError

OWN = OwnSettings(
    patches=2, windows=1, data_on="cpu", patches_per_case=1200, num_cases=10, num_validations=5, epoch_crops=4,
    images_per_batch=2, epochs_per_validation=2,
)  # fmt: skip


def settings(patches, windows=3, data_on="cpu"):
    return {PATCHES: patches, WINDOWS: windows, DATA_ON: data_on}


@given(st.integers(1, 40))
def test_segresnet_sees_as_many_patches_as_before(patches):
    keys = written_keys("segresnet", OWN, settings(patches), has_gpu=False)
    crops = keys["num_crops_per_image"]
    # As its training divides them.
    epochs = max(1, keys["num_epochs"] // min(3, crops))
    assert (keys["batch_size"], crops, keys["auto_scale_allowed"]) == (1, patches, False)
    assert epochs * crops == pytest.approx(OWN.patches_per_case, abs=crops / 2)


def test_segresnet_without_ratio_crops_puts_images_into_a_batch():
    own = OwnSettings(**{**vars(OWN), "crop_mode": "rand"})
    keys = written_keys("segresnet", own, settings(4), has_gpu=False)
    assert (keys["batch_size"], keys["num_crops_per_image"], keys["num_epochs"]) == (4, 1, own.patches_per_case)


@given(st.integers(1, 20), st.integers(1, 4))
def test_a_script_steps_on_whole_batches_and_sees_as_many_patches_as_before(patches, images):
    own = OwnSettings(**{**vars(OWN), "images_per_batch": images})
    keys = written_keys("swinunetr", own, settings(patches), has_gpu=False)
    crops = keys["num_crops_per_image"]
    assert keys["num_patches_per_iter"] == patches <= images * crops
    assert keys["num_epochs"] * crops == pytest.approx(own.patches_per_case, abs=crops / 2 + 2 * crops)


@pytest.mark.parametrize(
    ("name", "key", "patches", "rate"),
    [
        ("segresnet", "learning_rate", 1, 0.05),
        ("segresnet", "learning_rate", 2, None),
        ("segresnet2d", "learning_rate", 4, 0.2),
        ("segresnet", "learning_rate", 16, 0.8),
        ("segresnet", "learning_rate", 40, 0.8),
        ("dints", "training#learning_rate", 8, 0.2),
        ("swinunetr", "learning_rate", 40, 0.282843),
    ],
)
def test_the_learning_rate_follows_the_patches_of_a_step_as_far_as_was_measured(name, key, patches, rate):
    keys = written_keys(name, OwnSettings(**{**vars(OWN), "learning_rate": 0.1}), settings(patches), has_gpu=False)
    assert keys.get(key) == rate
    assert key not in written_keys(name, OWN, settings(patches), has_gpu=False)


@pytest.mark.parametrize(
    ("name", "rate"), [("segresnet", 0.0002), ("segresnet2d", 0.0002), ("dints", 0.2), ("swinunetr", 0.0004)]
)
def test_the_rate_of_a_template_is_its_own_key_unless_the_optimizer_takes_another(work, name, rate):
    parameters = read_parameters(work / f"{name}_0", name)
    assert named_rate(name, parameters) == rate
    inner = parameters.get("training", parameters)
    inner["optimizer"] = {**inner["optimizer"], "lr": 0.01}
    assert named_rate(name, parameters) is None


def test_the_keys_of_dints_stand_below_training():
    keys = written_keys("dints", OWN, settings(3, data_on="gpu"), has_gpu=True)
    assert all(key.startswith("training#") for key in keys)
    assert keys["training#sw_input_on_cpu"] is False


@pytest.mark.parametrize(
    ("data_on", "has_gpu", "device"), [("cpu", True, "cpu"), ("gpu", True, None), ("cpu", False, None)]
)
def test_segresnets_predictions_are_put_together_where_it_is_said(data_on, has_gpu, device):
    keys = written_keys("segresnet2d", OWN, settings(1, 5, data_on), has_gpu=has_gpu)
    assert keys["sliding_inferrer"].get("device") == device
    assert keys["sliding_inferrer"]["sw_batch_size"] == 5


def test_a_search_begins_at_the_nearest_of_a_range_that_leaves_the_own_settings_out():
    specs = AlgorithmSpecs(range_num_images_per_batch=(3, 8), range_num_sw_batch_size=(1, 1))
    patches, windows, places = algorithm_knobs(specs, OWN, has_gpu=True)
    assert (patches.default, patches.choices) == (3, (3, 4, 8))
    assert not windows.is_open
    assert places.choices == ("gpu", "cpu")


@pytest.mark.parametrize(
    ("name", "key"),
    [("segresnet_0", "roi_size"), ("dints_0", "training#num_patches_per_iter"), ("dints_0", "data_list_file_path"),
     ("swinunetr_0", "loss")],
)  # fmt: skip
def test_a_key_that_a_training_needs_is_named_if_it_is_empty_or_not_there(work, name, key):
    file = work / name / "configs" / "hyper_parameters.yaml"
    values = yaml.safe_load(file.read_text())
    inner, last = values["training"] if "#" in key else values, key.split("#")[-1]
    for change in (lambda: inner.update({last: None}), lambda: inner.pop(last)):
        change()
        file.write_text(yaml.safe_dump(values))
        with pytest.raises(InputError, match="BundleGen") as caught:
            read_parameters(work / name, name[:-2])
        assert f"'{key}'" in str(caught.value)
        assert str(file) in str(caught.value)


def test_parameters_that_are_no_yaml_are_named(work):
    file = work / "dints_0" / "configs" / "hyper_parameters.yaml"
    file.write_text("a: [")
    with pytest.raises(InputError, match="cannot read") as caught:
        read_parameters(work / "dints_0", "dints")
    assert str(file) in str(caught.value)
