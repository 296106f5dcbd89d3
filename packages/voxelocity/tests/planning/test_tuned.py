"""Settings that were tuned: kept by an exact key, taken by the plan, and left out where asked."""

from __future__ import annotations

import json
import shutil

import nibabel as nib
import numpy as np
import pytest

import voxelocity as vx
from voxelocity.planning import SharedKeys, Tuned, keep_tuned, make_plan, results_key, tuned_key
from voxelocity_observe.core.measured import FOLDER_NAME

BATCH, RATE = "data.batch_size", "optimizer.learning_rate"
THREADS, LAST = "data.feed.num_threads", "precision.channels_last"


@pytest.fixture
def plan(tiny_msd, tiny_plan, tmp_path):
    keys = {key: value for key, value in tiny_plan.items() if key != LAST}
    cases = vx.open(tiny_msd)

    def make(**given):
        return make_plan(cases, overrides={**keys, **given.pop("overrides", {})}, cache_folder=tmp_path, **given)

    return make


@pytest.fixture
def keep(plan, tmp_path):
    def kept(values, planned=None, key_of=tuned_key, **given):
        planned = planned or plan()
        tuned = Tuned(
            **{
                "values": values, "date": "2026-01-02", "goal": "throughput", "ratio": 0.8, "low": 0.7, "high": 0.9,
                "rounds": 2, "peak_bytes": 0, **given,
            }
        )  # fmt: skip
        about = key_of(planned.plan.to_plain(), planned.fingerprint, planned.machine)
        return keep_tuned(tmp_path / FOLDER_NAME, about, tuned)

    return kept


def choice(planned, key):
    return next(choice for choice in planned.choices if choice.key == key)


def test_a_plan_takes_what_was_tuned_and_shows_it_as_measured(plan, keep):
    keep({THREADS: 3, LAST: True})
    planned = plan()
    assert (planned.plan.data.feed.num_threads, planned.plan.precision.channels_last) == (3, True)
    reason = choice(planned, THREADS).reason
    assert "2026-01-02" in reason
    assert "0.80 times" in reason
    assert choice(planned, THREADS).measured.ratio == 0.8


def test_a_key_that_no_rule_settles_is_taken_too(plan, keep):
    keep({"window.sum_on": "memory"})
    planned = plan()
    assert planned.plan.window.sum_on == "memory"
    assert not choice(planned, "window.sum_on").changes_results


def test_a_value_of_its_own_has_its_own_reason(plan, keep):
    keep({RATE: 0.5, BATCH: 3}, key_of=results_key, reasons={RATE: "tuned on Friday: a range test"})
    found = choice(plan(), RATE)
    assert found.reason.startswith("tuned on Friday: a range test; for the same data set, optimizer, loss and")
    # That of the other settings is not one of this value.
    assert found.measured is None


def test_what_changes_results_is_taken_only_where_it_was_measured(plan, keep):
    before = plan().plan
    for key_of in (tuned_key, results_key):
        keep({BATCH: 3, RATE: 0.5, THREADS: 3}, key_of=key_of)
    found = plan()
    assert (found.plan.data.batch_size, found.plan.optimizer.learning_rate) == (3, 0.5)
    assert "for the same data set, optimizer, loss and schedule" in choice(found, BATCH).reason
    assert "for the same network and shape of the data" in choice(found, THREADS).reason
    for other in ({"optimizer.name": "sgd"}, {"loss.name": "dice_focal"}, {"schedule.decay": "poly"}):
        changed = plan(overrides=other).plan
        assert changed.data.feed.num_threads == 3
        assert changed.data.batch_size == before.data.batch_size
        assert changed.optimizer.learning_rate != 0.5


def test_a_rate_that_was_found_with_one_batch_is_not_taken_for_another(plan, keep):
    keep({BATCH: 3, RATE: 0.5}, key_of=results_key)
    assert plan(overrides={BATCH: 3}).plan.optimizer.learning_rate == 0.5
    assert plan(overrides={BATCH: 1}).plan.optimizer.learning_rate != 0.5


def test_a_rate_is_not_taken_for_the_batch_of_other_folds_or_of_nnunets_plans(plan, keep):
    keep({BATCH: 3, RATE: 0.5}, key_of=results_key)
    own = plan(overrides={"planner.use_tuned": False}).plan.optimizer.learning_rate
    shared = [SharedKeys(values={BATCH: size}, reason="as in the other folds") for size in (3, 1)]
    assert plan(shared=shared[0]).plan.optimizer.learning_rate == 0.5
    with pytest.warns(UserWarning, match=r"batch_size=3, but 1 is taken over here \(as in the other folds\)"):
        taken = plan(shared=shared[1]).plan
    assert (taken.data.batch_size, taken.optimizer.learning_rate) == (1, own)


def test_another_data_set_of_the_same_shapes_takes_only_what_changes_speed(tiny_msd, tiny_plan, tmp_path, keep):
    for key_of in (tuned_key, results_key):
        keep({RATE: 0.5, THREADS: 3}, key_of=key_of)
    other = tmp_path / "other"
    shutil.copytree(tiny_msd, other)
    made = {}
    for name in ("moved", "brighter"):
        keys = {key: value for key, value in tiny_plan.items() if key != LAST}
        made[name] = vx.plan(vx.open(other), overrides=keys, cache_folder=tmp_path).plan
        for path in (other / "imagesTr").glob("*.nii.gz"):
            image = nib.load(path)
            nib.save(nib.Nifti1Image((40.0 * image.get_fdata()).astype(np.float32), image.affine), path)
    assert [chosen.data.feed.num_threads for chosen in made.values()] == [3, 3]
    assert made["moved"].optimizer.learning_rate == 0.5
    assert made["brighter"].optimizer.learning_rate != 0.5


def test_the_user_wins_and_can_turn_it_off(plan, keep):
    before = plan().plan
    keep({THREADS: 3})
    assert plan(overrides={THREADS: 5}).plan.data.feed.num_threads == 5
    off = plan(overrides={"planner.use_tuned": False}).plan
    assert off.data.feed == before.data.feed


def test_another_network_patch_or_class_count_takes_nothing(plan, keep):
    keep({THREADS: 3})
    for other in ({"network.widths": [4, 16]}, {"data.patch.shape_voxel": [8, 8, 8], "window.shape_voxel": [8, 8, 8]}):
        assert plan(overrides=other).plan.data.feed.num_threads != 3


def test_a_run_that_began_before_keeps_its_own_values(plan, keep):
    before = plan().plan
    keep({THREADS: 3, LAST: not before.precision.channels_last})
    continued = plan(saved_plan=before).plan
    assert continued.data.feed == before.data.feed
    assert continued.precision == before.precision


def test_settings_that_took_more_memory_than_is_free_are_left_with_a_warning(plan, keep):
    keep({THREADS: 3}, peak_bytes=10**15)
    with pytest.warns(UserWarning, match=r"2026-01-02.*tune again"):
        assert plan().plan.data.feed.num_threads != 3


def test_a_file_that_is_damaged_or_from_another_version_is_no_obstacle(plan, keep):
    path = keep({THREADS: 3})
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "values": {"data.no_such_key": 1}}))
    assert plan().plan.data.feed.num_threads != 3
    path.write_text(json.dumps({**record, "values": 3}))
    assert plan().plan.data.feed.num_threads != 3
    path.write_text("{")
    assert plan().plan.data.feed.num_threads != 3


def test_the_file_says_in_words_what_it_is_about(keep):
    record = json.loads(keep({THREADS: 3}).read_text())
    assert record["values"] == {THREADS: 3}
    assert record["tuned"]["network"]["name"] == "unet"
    assert record["machine"]["torch"]
