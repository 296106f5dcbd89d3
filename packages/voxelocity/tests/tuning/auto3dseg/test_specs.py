"""`gpu_customization_specs`: what is understood, and what is refused."""

from __future__ import annotations

import pytest

from voxelocity.tuning.auto3dseg.specs import ALGORITHMS, parse_specs, read_specs
from voxelocity_observe.core.errors import ConfigError


def test_without_specs_every_algorithm_has_monais_ranges():
    specs = parse_specs(None)
    assert sorted(specs) == sorted(ALGORITHMS)
    assert {spec.range_num_images_per_batch for spec in specs.values()} == {(1, 20)}
    assert {spec.range_num_sw_batch_size for spec in specs.values()} == {(1, 40)}


def test_an_algorithms_own_specs_win_over_the_universal_ones_and_leave_the_others():
    specs = parse_specs({"universal": {"num_trials": 5, "range_num_sw_batch_size": [2, 3]}, "dints": {"num_trials": 7}})
    assert (specs["dints"].num_trials, specs["segresnet"].num_trials) == (7, 5)
    assert specs["dints"].range_num_sw_batch_size == (2, 3)


@pytest.mark.parametrize("name", ["swinunetr", "swunetr"])
def test_swinunetr_is_known_by_its_name_and_by_the_one_its_template_reads(name):
    assert parse_specs({name: {"num_trials": 3}})["swinunetr"].num_trials == 3


@pytest.mark.parametrize(
    ("specs", "words"),
    [
        ({"dint": {}}, ["dint", "dints"]),
        ({"universal": {"num_trial": 3}}, ["num_trial'", "num_trials", "universal"]),
        ({"dints": {"range_num_images_per_batch": [4, 1]}}, ["range_num_images_per_batch", "[4, 1]", "least"]),
        ({"dints": {"range_num_sw_batch_size": [0, 4]}}, ["range_num_sw_batch_size", "1 <= least"]),
        ({"dints": {"range_num_sw_batch_size": [-2, 4]}}, ["range_num_sw_batch_size"]),
        ({"dints": {"range_num_sw_batch_size": [4]}}, ["range_num_sw_batch_size"]),
        ({"dints": {"num_trials": 0}}, ["num_trials", "0"]),
        ({"dints": {"validation_data_device": "tpu"}}, ["validation_data_device", "tpu", "cpu"]),
        ({"dints": 3}, ["dints", "3", "num_trials"]),
    ],
)
def test_what_is_wrong_is_named_with_its_cure(specs, words):
    with pytest.raises(ConfigError) as caught:
        parse_specs(specs)
    assert all(word in str(caught.value) for word in words), caught.value


def test_specs_are_read_from_yaml(tmp_path):
    file = tmp_path / "specs.yaml"
    file.write_text("universal: {num_trials: 4, range_num_images_per_batch: [1, 2]}")
    assert parse_specs(read_specs(file))["dints"].range_num_images_per_batch == (1, 2)


@pytest.mark.parametrize(("text", "words"), [("a: [", "not YAML"), ("- 1", "by algorithm"), (None, "No such file")])
def test_a_file_that_holds_no_specs_is_named(tmp_path, text, words):
    file = tmp_path / "specs.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_specs(file)
    assert str(file) in str(caught.value)
