"""Which tier, format and budget a plan takes, at the boundaries of each, and what it says of them."""

import pytest

from shared.plan_facts import GIB, fingerprint, machine, plan_facts
from voxelocity.core.config import set_value
from voxelocity.data.cache import CacheConfig
from voxelocity.planning.cache_rule import settle_cache, settle_device_cache

# 3 bytes a voxel, image and label: a case of exactly 3 MiB.
SIDE = (128.0, 128.0, 64.0)
CASE_BYTES = 3 * 2**20


def planned(num_cases=100, side=SIDE, build_s=1.0, overrides=None, num_training=None, step_gib=0, room=0, **on):
    """The choices of the rules, by the last part of their keys, for cases of one size on a machine."""
    voxels = int(side[0] * side[1] * side[2]) * num_cases
    data = fingerprint(side, num_cases=num_cases, num_voxels=voxels, prepare_s=build_s, sampled_voxels=voxels)
    on = machine(**{"num_cpus": 1, **on})
    facts = plan_facts(data, on, overrides, num_training=num_training or num_cases * 4 // 5, cache_folder="c")
    set_value(facts.settled, "data.prepare", {"spacing_mm": [1.0, 1.0, 1.0], "crop": "none", "dtype": "smallest"})
    settle_cache(facts)
    facts.planned_bytes, facts.room_bytes = int(step_gib * GIB), room
    settle_device_cache(facts)
    CacheConfig.parse(facts.settled["data"]["cache"])
    return {choice.key.removeprefix("data.cache."): choice for choice in facts.choices}


def gib(num_cases):
    return num_cases * CASE_BYTES / GIB


@pytest.mark.parametrize(("num_cases", "tier"), [(4369, "memory"), (4370, "disk")])
def test_memory_holds_cases_up_to_two_fifths_of_what_is_free(num_cases, tier):
    assert planned(num_cases)["tier"].value == tier


@pytest.mark.parametrize(("build_s", "tier"), [(14.9, "memory"), (15.1, "disk")])
def test_cases_that_take_long_to_make_are_kept_for_the_next_run(build_s, tier):
    choice = planned(build_s=build_s)["tier"]
    assert choice.value == tier
    assert not choice.changes_results


def test_the_reasons_of_memory_and_disk_name_sizes_and_seconds():
    assert planned(build_s=3.0)["tier"].reason == (
        "prepared cases take 0.29 GiB (32.0 GiB memory, 500.0 GiB disk free) and about 3 s to make again in the next "
        "run"
    )
    assert planned(build_s=300.0)["tier"].reason == (
        "prepared cases take 0.29 GiB (32.0 GiB memory, 500.0 GiB disk free) and about 300 s to make, so they are kept "
        "for the next run"
    )


def test_cases_that_take_long_stay_in_memory_where_the_disk_is_too_full():
    choice = planned(build_s=300.0, disk_bytes=2**20)["tier"]
    assert choice.value == "memory"
    assert choice.reason.endswith("the disk has too little free space for them")


@pytest.mark.parametrize(("disk_gib", "format"), [(60, "raw"), (58, "blosc2")])
def test_entries_are_raw_up_to_half_of_the_free_disk(disk_gib, format):
    choice = planned(10_000, memory_bytes=64 * GIB, disk_bytes=disk_gib * GIB)["format"]
    assert choice.value == format
    assert not choice.changes_results


def test_the_reason_of_blosc2_on_a_small_disk_is_the_share_and_the_price():
    assert planned(10_000, memory_bytes=64 * GIB, disk_bytes=40 * GIB)["format"].reason == (
        "uncompressed, they would take 73% of the free disk; Blosc2 reduces that to at most 44%, and reading a patch "
        "takes 1.75 ms instead of 1.22 (docs/cache.md)"
    )


@pytest.mark.parametrize(("memory_gib", "format"), [(36, "raw"), (35, "blosc2")])
def test_entries_are_raw_as_long_as_the_page_cache_holds_nearly_all(memory_gib, format):
    """29.3 GiB of cases; 80 % of the memory must hold 96.4 % of them."""
    assert planned(10_000, memory_bytes=memory_gib * GIB)["format"].value == format


def test_the_reasons_of_both_formats_on_a_large_disk_name_what_was_measured():
    assert planned(10_000, memory_bytes=8 * GIB)["format"].reason == (
        "memory is too small for the system to keep them all there, so 78% of the patches come from the disk itself: "
        "about 26 ms each with Blosc2, 40 ms uncompressed (docs/cache.md)"
    )
    assert planned(10_000, memory_bytes=64 * GIB, build_s=100.0)["format"].reason == (
        "6% of the free disk, and the system keeps them in memory: 1.22 ms per patch, 1.75 with Blosc2 (docs/cache.md)"
    )


def test_tiers_without_files_settle_no_format():
    assert "format" not in planned()


SMALL = (64.0, 64.0, 64.0)  # 0.75 MiB


@pytest.mark.parametrize(
    ("num_cases", "side", "tier"),
    [(20_001, SMALL, "lmdb"), (20_000, SMALL, "disk"), (20_001, (128.0, 64.0, 64.0), "disk")],
)
def test_very_many_small_cases_are_kept_in_one_file(num_cases, side, tier):
    assert planned(num_cases, side, build_s=100.0)["tier"].value == tier


def test_the_reason_of_one_file_is_the_number_of_files_it_saves():
    assert planned(40_000, SMALL, build_s=100.0)["tier"].reason.endswith(
        "so they are kept for the next run; 40,000 cases of 0.75 MiB go into one file instead of two each, since "
        "quotas and backups count files"
    )


def test_one_file_that_cannot_be_had_here_is_named_with_its_needs():
    choice = planned(40_000, SMALL, build_s=100.0, cache_tiers=("disk",))["tier"]
    assert choice.value == "disk"
    assert choice.reason.endswith(
        "40,000 cases of 0.75 MiB are better kept in one file (tier lmdb), but that needs the package lmdb and a cache "
        "folder on a local disk"
    )


def test_where_neither_holds_all_a_window_rotates_and_it_is_said_that_this_changes_results():
    choices = planned(10_000, memory_bytes=8 * GIB, disk_bytes=2**20)
    assert choices["tier"].value == "rotating"
    assert choices["tier"].changes_results
    assert "they fit neither in memory nor on disk, but memory holds 992 at a time" in choices["tier"].reason
    assert "This changes results; free some disk, or set data.cache.tier" in choices["tier"].reason
    assert choices["num_cases"].value == 992
    assert choices["num_cases"].changes_results
    assert choices["num_cases"].reason == (
        "40% of the free memory holds 992 of the 8000 training cases, and those that replace some of them"
    )
    assert choices["replace_rate"].value == 0.1
    assert choices["replace_rate"].reason == (
        "a tenth after each epoch, prepared during the epoch; after about 71 epochs every case has been used"
    )
    # The window and its replacements, within the budget.
    assert 992 * 1.1 * CASE_BYTES <= 0.4 * 8 * GIB <= choices["max_bytes"].value


@pytest.mark.parametrize(("memory_mib", "tier"), [(132, "rotating"), (131, "none")])
def test_a_window_of_a_handful_of_cases_is_not_worth_it(memory_mib, tier):
    choice = planned(10_000, memory_bytes=memory_mib * 2**20, disk_bytes=2**20)["tier"]
    assert choice.value == tier
    if tier == "none":
        assert not choice.changes_results
        assert choice.reason.endswith(
            "they fit neither in memory nor on disk, and fewer than 16 at a time fit into memory, so cases are "
            "prepared "
            "each time they are used"
        )


def test_memory_that_holds_the_cases_to_learn_from_needs_no_window():
    choice = planned(1000, num_training=500, memory_bytes=5 * GIB, disk_bytes=2**20)["tier"]
    assert choice.value == "memory"
    assert choice.reason.endswith("but memory holds the 500 training cases")


def test_a_rotating_cache_of_your_own_gets_its_window_from_the_rule():
    choices = planned(1000, memory_bytes=5 * GIB, overrides={"data.cache.tier": "rotating"})
    assert choices["tier"].changes_results
    assert (choices["num_cases"].value, choices["replace_rate"].value) == (620, 0.1)
    fixed = planned(1000, memory_bytes=5 * GIB, overrides={"data.cache.tier": "rotating", "data.cache.num_cases": 100})
    assert fixed["num_cases"].value == 100
    assert "after about 70 epochs" in fixed["replace_rate"].reason
    assert planned(10, overrides={"data.cache.tier": "rotating"})["num_cases"].value == 8, "no more than there are"


@pytest.mark.parametrize(
    ("shared_gib", "budget_gib", "said"),
    [
        (16, 16, "at most half of the free memory"),
        (1, 1, "all free space in /dev/shm, less than half of the free memory: processes share one copy"),
        (0.25, 16, "/dev/shm has only 0.25 GiB free, so each training process keeps its own copy"),
    ],
)
def test_the_budget_is_what_processes_can_share_where_that_holds_all(shared_gib, budget_gib, said):
    choice = planned(shared_bytes=int(shared_gib * GIB))["max_bytes"]
    assert choice.value == budget_gib * GIB
    assert said in choice.reason


def on_cuda(num_cases, free_gib=80, **changes):
    gpu = {"device": "cuda", "device_name": "some GPU", "device_memory_bytes": 80 * GIB}
    return planned(num_cases, device_free_bytes=free_gib * GIB, **gpu, **changes)


def kept_on_device(num_cases, **changes):
    """Bytes for cases on a device with 80 GiB free, and their share of what the training cases take."""
    value = on_cuda(num_cases, num_training=num_cases, **changes)["device_max_bytes"].value
    return value, value / int(1.1 * num_cases * CASE_BYTES)


@pytest.mark.parametrize(("num_training", "comes_first"), [(6206, True), (6207, False)])
def test_cases_come_before_the_network_up_to_a_quarter_of_what_is_free(num_training, comes_first):
    """With a tenth to spare: 6206 cases of 3 MiB take 19.999 of the 20 GiB."""
    choice = on_cuda(7000, num_training=num_training, step_gib=40)["device_max_bytes"]
    assert choice.value == int(1.1 * num_training * CASE_BYTES)
    assert ("the network is planned with the rest" in choice.reason) == comes_first
    assert not choice.changes_results


def test_more_cases_get_what_the_network_leaves():
    # Of 80 GiB a step takes 40, and 12 stay free.
    gib_of_case = 1.1 * CASE_BYTES / GIB
    assert kept_on_device(int(27.9 / gib_of_case), step_gib=40)[1] == 1.0
    value, share = kept_on_device(int(56 / gib_of_case), step_gib=40)
    assert value == 28 * GIB
    assert share == pytest.approx(0.5, abs=0.01)
    assert kept_on_device(int(56 / gib_of_case), step_gib=62)[1] == pytest.approx(6 / 56, abs=0.01)
    assert kept_on_device(int(70 / gib_of_case), step_gib=62)[0] == 0, "less than a tenth"
    assert kept_on_device(int(56 / gib_of_case), step_gib=75)[0] == 0


def test_a_step_that_ran_out_of_memory_leaves_nothing_to_large_data():
    assert kept_on_device(8000, step_gib=20, room=60 * GIB)[0] == 0
    assert kept_on_device(1000, step_gib=20, room=60 * GIB)[1] == 1.0


def test_bytes_that_the_user_sets_are_known_to_the_network():
    choice = on_cuda(20_000, overrides={"data.cache.device_max_bytes": 5 * GIB})["device_max_bytes"]
    assert choice.value == 5 * GIB
    assert choice.reason.startswith("set by you")


def test_the_reasons_for_and_against_the_device_name_its_memory_and_what_the_network_needs():
    assert on_cuda(1000)["device_max_bytes"].reason == (
        "the 800 training cases take 2.58 GiB of the device's 80.0 GiB free: below 25%, so the device keeps them too "
        "and no batch waits for a copy; the network is planned with the rest"
    )
    takes = (
        "the 800 training cases take 2.58 GiB of the device's 8.0 GiB free, of which a step takes {}.0 and 1.2 stay "
        "free for workspaces, graphs and validations: "
    )
    for step_gib, then in (
        (4, "they fit, so they are also kept on the device and no batch waits for a copy"),
        (6, "it keeps 31% of them, and patches of the others are copied there for each batch"),
        (7, "too little memory is left for a tenth of them"),
    ):
        assert on_cuda(1000, free_gib=8, step_gib=step_gib)["device_max_bytes"].reason == takes.format(step_gib) + then


def test_the_tier_behind_the_device_is_chosen_as_without_it():
    assert on_cuda(1000)["tier"].value == "memory"
    assert on_cuda(1000, build_s=100.0)["tier"].value == "disk"


def test_nothing_is_kept_on_a_cpu_as_device_or_before_a_rotating_cache():
    assert "device_max_bytes" not in planned()
    assert "device_max_bytes" not in on_cuda(1000, overrides={"data.cache.tier": "rotating"})


def test_the_folder_has_a_limit_that_its_own_data_set_fits_and_says_what_it_holds():
    small = planned(build_s=20.0, disk_bytes=60 * GIB, cache_bytes=40 * GIB)
    assert small["folder_max_bytes"].value == 50 * GIB
    assert "has 40.00 GiB now" in small["folder"].reason
    large = planned(16_384, disk_bytes=60 * GIB, cache_bytes=40 * GIB)
    assert large["tier"].value == "disk"
    assert large["folder_max_bytes"].value == int(1.25 * 48 * GIB)
    full = planned(30_000, disk_bytes=60 * GIB, cache_bytes=40 * GIB)
    assert full["folder_max_bytes"].value == 80 * GIB


def test_entries_that_the_folder_holds_count_as_room_for_others():
    assert planned(16_384, disk_bytes=GIB, cache_bytes=90 * GIB)["tier"].value == "disk"
    assert planned(16_384, disk_bytes=GIB)["tier"].value != "disk"


def test_a_device_keeps_no_cases_of_more_classes_than_a_byte_holds(monkeypatch):
    assert "device_max_bytes" in on_cuda(1000)
    monkeypatch.setattr("voxelocity.planning.cache_rule.MAX_BYTE_CLASSES", 2)
    assert "device_max_bytes" not in on_cuda(1000)
    assert "device_max_bytes" not in on_cuda(1000, step_gib=40)
