import re
from types import SimpleNamespace

import numpy as np
import pytest

from shared.plan_facts import GIB, fingerprint, machine, plan_facts
from voxelocity.core.config import set_value
from voxelocity.planning import Plan
from voxelocity.planning.fingerprint import Intensity, _ChannelSample, _intensity
from voxelocity.planning.memory_rule import device_bytes
from voxelocity.planning.patch_fit import coarsen
from voxelocity.planning.rules import RULES, settle_flips
from voxelocity.planning.step_forecast import PatchPass
from voxelocity.step import LOSSES, OPTIMIZERS, OptimizerConfig
from voxelocity_observe.core.errors import ConfigError


def settled(data=None, on=None, overrides=None, time_budget_s=0.0, kept=None):
    facts = plan_facts(data or fingerprint(), on or machine(), overrides, time_budget_s=time_budget_s, kept=kept or {})
    for rule in RULES:
        rule(facts)
    return facts


def chosen(facts, key):
    (choice,) = [choice for choice in facts.choices if choice.key == key]
    return choice


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(35, 50, 36), (512, 512, 120), (64, 64, 4), (20, 300, 300), (9, 9, 9), (5, 6, 1)])
def test_any_data_gets_a_complete_and_valid_plan_with_reasons(device, shape):
    facts = settled(fingerprint(tuple(map(float, shape))), machine(device))
    Plan.parse(facts.settled)
    assert all(len(choice.reason) > 3 for choice in facts.choices)
    assert len({choice.key for choice in facts.choices}) == len(facts.choices)


def test_cases_of_one_spacing_are_not_resampled():
    spacing = chosen(settled(fingerprint(spacing=(0.8, 0.8, 2.0))), "data.prepare.spacing_mm")
    assert spacing.value == [0.8, 0.8, 2.0]
    assert "nothing is resampled" in spacing.reason


def test_volumes_too_large_for_a_cpu_are_made_coarser_and_it_is_said():
    large = fingerprint((512.0, 512.0, 120.0), (0.7, 0.7, 2.5))
    on_cpu = chosen(settled(large), "data.prepare.spacing_mm")
    on_gpu = chosen(settled(large, machine("cuda")), "data.prepare.spacing_mm")
    assert on_cpu.value[0] > on_gpu.value[0] == 0.7
    assert "coarser, because the median case would have 31.5 million voxels" in on_cpu.reason


def test_making_coarser_takes_the_finest_axes_first():
    coarser = coarsen(np.array([0.5, 0.5, 5.0]), np.array([500.0, 500.0, 20.0]), 20 * 100 * 100)
    np.testing.assert_allclose(coarser, [2.5, 2.5, 5.0], rtol=1e-3)


def test_ct_is_windowed_and_mr_is_not():
    ct = settled(fingerprint(channels=("CT",)))
    assert chosen(ct, "data.prepare.intensity.mode").value == "window"
    assert chosen(ct, "data.prepare.intensity.low").value == 10
    air = Intensity(percentile_00_5=10, median=50, percentile_99_5=90, mean=51, std=20, lowest=-1000, highest=900)
    by_air = chosen(settled(fingerprint(channels=("image",), intensity=(air,))), "data.prepare.intensity.mode")
    assert (by_air.value, by_air.reason[:24]) == ("window", "air near -1000: these ar")
    unnamed = chosen(settled(fingerprint(channels=("image",))), "data.prepare.intensity.mode")
    assert "if they are CT numbers, name the channel CT (docs/data-sets.md)" in unnamed.reason
    mr = settled(fingerprint(channels=("T1", "T2")))
    assert chosen(mr, "data.prepare.intensity.mode").value == "zscore"
    assert "data.prepare.intensity.low" not in {choice.key for choice in mr.choices}
    one_for_all = settled(fingerprint(channels=("T1", "T2")), overrides={"data.prepare.intensity.mode": "window"})
    assert chosen(one_for_all, "data.prepare.intensity.low").reason == "foreground of 'T1' in the sampled cases"


def test_ct_with_a_foreground_of_one_value_is_scaled_case_by_case():
    flat = Intensity(percentile_00_5=1, median=1, percentile_99_5=1, mean=1, std=0, lowest=-1000, highest=900)
    mode = chosen(settled(fingerprint(channels=("CT",), intensity=(flat,))), "data.prepare.intensity.mode")
    assert (mode.value, mode.reason[:59]) == ("zscore", "the foreground of the sampled cases has one value (1), so t")


def test_statistics_of_huge_intensities_are_finite():
    sample = _ChannelSample(foreground=np.array([1e30, 3e30], np.float32), lowest=0.0, highest=3e30)
    found = _intensity([sample])
    assert (found.mean, found.std) == (pytest.approx(2e30), pytest.approx(1e30))


def test_a_crop_is_made_where_it_saves_something():
    assert chosen(settled(fingerprint(crop_share=0.3)), "data.prepare.crop").value == "nonzero"
    assert chosen(settled(fingerprint(crop_share=0.95)), "data.prepare.crop").value == "none"


def test_compiling_is_left_out_with_the_reason_and_the_flag_that_turns_it_on():
    for device in ("cpu", "cuda"):
        choice = chosen(settled(on=machine(device)), "precision.compile")
        assert (choice.value, choice.changes_results) == ("none", True)
        assert "--set precision.compile=default turns it on" in choice.reason


def test_switches_of_cuda_libraries_are_chosen_on_a_gpu_alone():
    keys = ["backend.tf32", "backend.cudnn_benchmark"]
    on_gpu, on_cpu = settled(on=machine("cuda"), time_budget_s=30.0), settled()
    assert [chosen(on_gpu, key).value for key in keys] == [True, False]
    assert all("voxelocity bench" in chosen(on_gpu, key).reason for key in keys)
    assert not {choice.key for choice in on_cpu.choices} & set(keys)


def test_precision_follows_the_hardware():
    assert chosen(settled(), "precision.compute").value == "bfloat16"
    assert chosen(settled(on=machine(fast_bfloat16=False)), "precision.compute").value == "float32"
    assert chosen(settled(on=machine("cuda", fast_bfloat16=False)), "precision.compute").value == "float16"


def test_a_time_budget_leaves_the_steps_open_and_a_long_one_widens_the_network():
    short, long = settled(time_budget_s=300), settled(time_budget_s=1200)
    assert chosen(short, "train.steps").value == 0
    assert chosen(short, "network.stem_stride").value == [2, 2, 2]
    assert chosen(short, "network.widths").value == [24, 48, 96]
    assert chosen(long, "network.stem_stride").value == [1, 1, 1]
    assert len(chosen(long, "network.strides").value) == len(chosen(short, "network.strides").value) + 1


def test_a_long_run_on_a_cpu_augments_as_much_as_nnunet():
    short, long = settled(time_budget_s=300), settled(time_budget_s=1200)
    assert chosen(short, "data.augment.rotation_degrees").value == [15.0, 15.0, 15.0]
    assert chosen(long, "data.augment.rotation_degrees").value == [30.0, 30.0, 30.0]
    assert chosen(long, "data.augment.scale_range").value == [0.7, 1.4]
    on_gpu = settled(time_budget_s=1200, on=machine("cuda"))
    assert chosen(on_gpu, "data.augment.scale_range").value == [0.85, 1.18]


@pytest.mark.parametrize(
    ("overrides", "widths", "num_strides"),
    [
        ({"network.stem_stride": [1, 1, 1]}, [8, 32, 64, 128], 3),
        ({"network.widths": [4, 8, 16, 32]}, [4, 8, 16, 32], 3),
        ({"network.name": "unet"}, [8, 32, 64, 128], 3),
        ({"data.patch.shape_voxel": [16, 16, 16]}, [8, 32, 64], 2),
    ],
)
def test_levels_begin_at_the_patch_where_a_person_wants_them_to_or_the_patch_is_small(overrides, widths, num_strides):
    facts = settled(time_budget_s=300, overrides=overrides)
    assert chosen(facts, "network.widths").value == widths
    assert len(chosen(facts, "network.strides").value) == num_strides
    assert Plan.parse(facts.settled).network.stem_stride == (1, 1, 1)


def test_a_stem_of_your_own_leaves_the_other_levels_of_a_gpu_as_they_are():
    whole = Plan.parse(settled(on=machine("cuda")).settled).network
    facts = settled(on=machine("cuda"), overrides={"network.stem_stride": [2, 2, 2]})
    network = Plan.parse(facts.settled).network
    assert network.strides == whole.strides[1:]
    assert network.widths == whole.widths[:-1]


def test_muon_trains_on_a_cpu_alone():
    assert chosen(settled(), "optimizer.name").value == "muon"
    assert Plan.parse(settled().settled).optimizer.momentum == 0.95
    assert chosen(settled(on=machine("cuda")), "optimizer.name").value == "adamw"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_gets_the_rate_and_the_momentum_of_its_entry(name):
    plan = Plan.parse(settled(overrides={"optimizer.name": name}).settled)
    kind = OPTIMIZERS[name]
    momentum = kind.planned_momentum or (OptimizerConfig.model_fields["momentum"].default, "")
    assert (plan.optimizer.learning_rate, plan.optimizer.momentum) == (kind.planned_rate[0], momentum[0])


def test_the_plan_shows_at_which_norm_gradients_are_clipped():
    choice = chosen(settled(), "optimizer.clip_norm")
    assert (choice.value, choice.reason) == (12.0, "larger gradients are clipped to this norm, as in nnU-Net")
    assert chosen(settled(overrides={"optimizer.clip_norm": 1.0}), "optimizer.clip_norm").value == 1.0


def test_the_reason_of_the_loss_names_the_others():
    choice = chosen(settled(), "loss.name")
    assert (choice.value, [name for name in LOSSES if name not in choice.reason]) == ("dice_ce", ["dice_ce"])


def test_a_persons_value_wins_and_later_rules_see_it():
    facts = settled(overrides={"data.prepare.spacing_mm": [2.0, 2.0, 2.0], "data.batch_size": 7})
    assert chosen(facts, "data.batch_size").value == 7
    assert chosen(facts, "data.batch_size").reason == "set by you; the rule would have chosen 2"
    assert max(chosen(facts, "data.patch.shape_voxel").value) <= 24, "half the voxels of 35 x 50 x 36 mm"


def test_a_patch_of_your_own_gets_a_network_and_a_window_that_suit_it():
    plan = Plan.parse(settled(overrides={"data.patch.shape_voxel": [36, 36, 20]}).settled)
    assert plan.network.divisor == (4, 4, 4)
    assert plan.window.shape_voxel == (36, 36, 20)


def test_cases_may_keep_their_own_spacing():
    plan = Plan.parse(settled(overrides={"data.prepare.spacing_mm": "keep"}).settled)
    assert plan.data.prepare.spacing_mm == "keep"


def test_strides_of_your_own_decide_the_number_of_levels():
    facts = settled(overrides={"network.strides": [[2, 2, 2], [2, 2, 1]]})
    assert len(chosen(facts, "network.widths").value) == 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("extent_mm", [(48.0, 48.0, 31.0), (35.0, 50.0, 36.0), (20.0, 300.0, 9.0)])
@pytest.mark.parametrize("stem", [(1, 1, 1), (2, 2, 2)])
def test_a_patch_is_a_multiple_of_strides_of_your_own(device, extent_mm, stem):
    overrides = {"network.strides": [[2, 2, 2], [2, 2, 2], [2, 2, 1]], "network.stem_stride": list(stem)}
    plan = Plan.parse(settled(fingerprint(extent_mm), machine(device), overrides=overrides).settled)
    assert plan.network.divisor == tuple(n * s for n, s in zip((8, 8, 4), stem, strict=True))


def test_mirrored_windows_swap_the_classes_that_flipped_patches_swap():
    facts = settled(fingerprint(class_names=("background", "kidney_left", "kidney_right")))
    plan = Plan.parse(facts.settled)
    assert plan.data.augment.swap_pairs == plan.window.swap_pairs == (("kidney_left", "kidney_right"),)
    assert plan.window.mirror_axes == (0,)


def test_the_window_is_the_patch_and_mirrored_as_it_was_flipped():
    facts = settled(overrides={"data.augment.flip_probability": [0.5, 0.0, 0.2]})
    assert chosen(facts, "window.shape_voxel").value == chosen(facts, "data.patch.shape_voxel").value == [32, 48, 32]
    assert chosen(facts, "window.mirror_axes").value == [0, 2]


def planned(free_gib, num_classes=2, num_channels=1, num_ranks=1, **options):
    names = ("background", *(f"class {index}" for index in range(1, num_classes)))
    data = fingerprint((512.0, 512.0, 300.0), channels=("CT",) * num_channels, class_names=names)
    memory = {"device_memory_bytes": int(80 * GIB), "device_free_bytes": int(free_gib * GIB)}
    facts = settled(data, machine("cuda", **memory, num_ranks=num_ranks), **options)
    return facts, Plan.parse(facts.settled)


def needed_bytes(plan, num_classes, num_channels):
    patch = PatchPass(
        network=plan.network, shape_voxel=plan.data.patch.shape_voxel, num_channels=num_channels,
        num_outputs=num_classes, is_half=True,
    )  # fmt: skip
    return device_bytes(patch, batch_size=plan.data.batch_size)


@pytest.mark.parametrize("free_gib", [2, 4, 6, 8, 11, 12, 16, 24, 80])
@pytest.mark.parametrize(("num_classes", "num_channels"), [(2, 1), (15, 1), (5, 4), (105, 1)])
def test_every_plan_fits_the_memory_that_is_free_by_its_own_count(free_gib, num_classes, num_channels):
    facts, plan = planned(free_gib, num_classes, num_channels)
    assert needed_bytes(plan, num_classes, num_channels) <= free_gib * GIB
    assert 2 <= plan.data.batch_size <= 8
    reason = chosen(facts, "data.batch_size").reason
    takes, room = re.search(r"estimated ([\d.]+) of the ([\d.]+) GiB free", reason).groups()
    assert float(takes) <= float(room) <= free_gib


def test_more_memory_gives_larger_patches_then_larger_batches():
    sizes = []
    for free_gib in (2, 4, 6, 8, 12, 16, 24, 80):
        _, plan = planned(free_gib, num_classes=15)
        voxels = np.prod(plan.data.patch.shape_voxel)
        sizes.append((plan.network.widths[0], voxels, plan.data.batch_size))
    assert [width for width, _, _ in sizes] == sorted(width for width, _, _ in sizes)
    assert [voxels * batch for _, voxels, batch in sizes] == sorted(voxels * batch for _, voxels, batch in sizes)
    assert sizes[0] < sizes[-1]
    assert sizes[-1] == (32, 128**3, 8)


def test_classes_and_other_programs_take_memory_from_the_patch():
    few, many = (planned(8, num_classes)[1].data.patch.shape_voxel for num_classes in (2, 105))
    assert np.prod(many) < 0.7 * np.prod(few)
    facts, _ = planned(6)
    assert "memory that is free on some GPU" in chosen(facts, "data.patch.shape_voxel").reason


def test_narrow_networks_are_planned_where_small_patches_do_not_suffice_and_it_is_said():
    facts, plan = planned(1.0, num_classes=15)
    assert plan.network.widths[0] < 32
    assert "narrower than nnU-Net's 32" in chosen(facts, "network.widths").reason


def test_memory_is_planned_for_the_outputs_of_overlapping_classes_not_for_their_labels():
    names = ("background", "edema", "core")
    memory = {"device_memory_bytes": 80 * GIB, "device_free_bytes": 80 * GIB}
    regions = tuple(f"r{n}" for n in range(40))
    many = fingerprint((512.0, 512.0, 300.0), class_names=names, regions=regions)
    facts = settled(many, machine("cuda", **memory))
    plan = Plan.parse(facts.settled)
    assert facts.planned_bytes == needed_bytes(plan, 40, len(many.channels))


def test_what_does_not_fit_at_all_is_called_so():
    facts, _ = planned(0.4, num_classes=105)
    assert chosen(facts, "data.batch_size").reason.startswith("does not fit: 2 patches take an estimated")


def test_ranks_share_a_batch_that_fits_all_of_their_devices_together():
    (alone, _), (four, plan), (twelve, _) = (planned(12, num_ranks=num_ranks) for num_ranks in (1, 4, 12))
    sizes = [chosen(facts, "data.batch_size").value for facts in (alone, four, twelve)]
    assert sizes == [sizes[0], 4 * sizes[0], 12 * sizes[0]]
    assert f"{sizes[1]} patches, shared by 4 ranks, take an estimated" in chosen(four, "data.batch_size").reason
    shared = plan.model_copy(update={"data": plan.data.model_copy(update={"batch_size": 2})})
    assert needed_bytes(shared, 2, 1) <= 12 * GIB


def test_ranks_on_cpus_take_two_patches_each():
    choice = chosen(settled(on=machine(num_ranks=3)), "data.batch_size")
    assert choice.value == 6
    assert choice.reason.startswith("two for each of 3 ranks")


def test_cases_kept_on_the_device_leave_less_for_the_network():
    alone, _ = planned(24)
    with_cases, _ = planned(24, overrides={"data.cache.device_max_bytes": 16 * GIB})
    assert chosen(with_cases, "data.batch_size").value < chosen(alone, "data.batch_size").value


def test_memory_is_planned_for_the_network_that_is_taken_over_from_another_run():
    usual, _ = planned(24)
    with_dropout, _ = planned(24, kept={"network.dropout": 0.2})
    assert chosen(with_dropout, "data.batch_size").value < chosen(usual, "data.batch_size").value


def test_a_persons_patch_widths_and_batch_are_what_the_rest_is_fitted_to():
    _, plan = planned(6, overrides={"data.patch.shape_voxel": [128, 128, 128], "data.batch_size": 4})
    assert (plan.data.patch.shape_voxel, plan.data.batch_size) == ((128, 128, 128), 4)
    assert plan.network.widths[0] < 32
    _, wide = planned(6, overrides={"network.widths": [64, 128, 256, 512], "network.strides": [[2, 2, 2]] * 3})
    _, usual = planned(6)
    assert np.prod(wide.data.patch.shape_voxel) < np.prod(usual.data.patch.shape_voxel)


def test_a_run_to_a_target_keeps_its_learning_rate_and_averages_its_weights():
    facts = settled(overrides={"train.target_dice": 0.9}).settled
    assert (facts["schedule"]["warmup_share"], facts["schedule"]["decay"]) == (0.0, "constant")
    assert facts["optimizer"]["average_decay"] == 0.98
    assert settled().settled["schedule"] == {"decay": "cosine"}
    assert "average_decay" not in settled().settled["optimizer"]


def test_a_budget_is_for_steps_and_a_run_without_one_looks_more_often():
    assert settled(time_budget_s=120.0).settled["train"]["validation_share"] == 0.01
    assert "validation_share" not in settled().settled["train"]


PAIR = ["RightParotid", "LeftParotid"]


def flips(*class_names, orientation="RAS", regions=(), **overrides):
    """The rule's choices by the last part of their keys."""
    keys = {f"data.augment.{key}": value for key, value in overrides.items()}
    data = SimpleNamespace(class_names=("background", *class_names), regions=regions)
    facts = plan_facts(data, None, keys)
    set_value(facts.settled, "data.prepare.orientation", orientation)
    settle_flips(facts)
    return {choice.key.removeprefix("data.augment."): choice for choice in facts.choices}


def test_classes_without_sides_are_flipped_and_nothing_is_said_of_pairs():
    choices = flips("anterior", "posterior")
    assert choices.keys() == {"flip_probability"}
    assert choices["flip_probability"].value == [0.5, 0.0, 0.0]
    assert "no class name states a side, so no labels are swapped" in choices["flip_probability"].reason
    assert "side" not in flips("tumour")["flip_probability"].reason


def test_regions_are_flipped_only_if_neither_they_nor_their_classes_have_a_side():
    plain = flips("edema", "core", regions=("whole", "core"))
    assert plain["flip_probability"].value == [0.5, 0.0, 0.0]
    assert plain.keys() == {"flip_probability"}
    sided = flips("edema", "core", regions=("left tumor", "right tumor"))
    assert sided["flip_probability"].value == [0.0, 0.0, 0.0]
    assert sided["flip_probability"].reason == (
        "no flips: left tumor, right tumor have a side, and regions cannot be swapped"
    )
    single = flips("left kidney", "cyst", regions=("kidney", "cyst"))["flip_probability"]
    assert single.value == [0.0, 0.0, 0.0]
    assert single.reason == "no flips: left kidney has a side, and regions cannot be swapped"


def test_regions_cannot_be_swapped():
    with pytest.raises(
        ConfigError, match=r"swap_pairs: \[\['a', 'b'\]\] cannot be swapped, as this data set has regions"
    ):
        flips("a", "b", regions=("a", "b"), swap_pairs=[["a", "b"]])


def test_a_pair_is_swapped_where_left_and_right_are_flipped():
    choices = flips("Mandible", *PAIR)
    assert choices["swap_pairs"].value == [PAIR]
    assert choices["swap_pairs"].reason == (
        "classes 2/3 RightParotid/LeftParotid are a pair: a left-right flip swaps their labels"
    )
    assert choices["flip_probability"].value == [0.5, 0.0, 0.0]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("LeftParotid", "Mandible"), "LeftParotid is labeled on one side only, and a flipped other side would look"),
        (("left_ventricle", "right_ventricle"), "the mirror image of one of left_ventricle and right_ventricle"),
    ],
)
def test_nothing_is_flipped_where_a_flip_would_show_a_false_side(names, text):
    choices = flips(*names)
    assert choices["flip_probability"].value == [0.0, 0.0, 0.0]
    assert text in choices["flip_probability"].reason


def test_pairs_in_any_language_are_named_by_the_user():
    choices = flips("Niere links", "Niere rechts", swap_pairs=[["Niere links", "Niere rechts"]])
    assert choices["swap_pairs"].reason == "set by you; the rule would have chosen ()"
    assert choices["flip_probability"].value == [0.5, 0.0, 0.0]
    with pytest.raises(ConfigError, match=r"swap_pairs names 'Niere recht', which .* did you mean 'Niere rechts'"):
        flips("Niere links", "Niere rechts", swap_pairs=[["Niere links", "Niere recht"]])


def test_a_pair_that_the_user_does_not_swap_is_not_flipped_unless_asked_for():
    choices = flips(*PAIR, swap_pairs=[])
    assert choices["flip_probability"].value == [0.0, 0.0, 0.0]
    assert "swap_pairs does not include RightParotid and LeftParotid" in choices["flip_probability"].reason
    asked = flips(*PAIR, swap_pairs=[], flip_probability=[0.5, 0.0, 0.0])
    assert asked["flip_probability"].value == [0.5, 0.0, 0.0]


def test_a_pair_in_scans_that_keep_their_orientation_is_not_flipped():
    choices = flips(*PAIR, orientation="keep")
    assert choices["flip_probability"].value == [0.0, 0.0, 0.0]
    assert "the left-right axis is unknown" in choices["flip_probability"].reason


def test_two_threads_feed_a_device_that_holds_all_cases_and_more_where_cases_are_copied_or_decoded():
    def threads(**options):
        data = fingerprint((64.0, 64.0, 64.0))
        memory = {"device_memory_bytes": 80 * GIB, "device_free_bytes": 70 * GIB}
        on = machine("cuda", num_cpus=16, **memory, **options.pop("on", {}))
        return chosen(settled(data, on, overrides=options), "data.feed.num_threads")

    assert threads().value == 2
    assert not threads().changes_results
    assert threads(**{"data.cache.device_max_bytes": 0}).value == 8
    assert threads(**{"data.cache.tier": "none"}).value == 8
    assert threads(**{"data.augment.engine": "torch"}).value == 8
    assert threads(on={"has_triton": False}).value == 8
