import pytest

from voxelocity.bench.switches import NEED_CUDA, SWITCHES, Device, make_switch, this_device
from voxelocity.core.config import check_key, check_value
from voxelocity.core.errors import InputError
from voxelocity.planning import Plan

CPU = Device(kind="cpu", words="EPYC", fast_bfloat16=True)
GPU = Device(kind="cuda", words="H100", fast_bfloat16=True)
OLD_GPU = Device(kind="cuda", words="V100", fast_bfloat16=False)


@pytest.mark.parametrize("name", SWITCHES)
def test_both_sides_set_the_same_keys_of_the_plan_to_other_values(name):
    switch = make_switch(name, GPU)
    assert switch.name == name
    assert switch.off.keys() == switch.on.keys()
    for key, value in [*switch.off.items(), *switch.on.items()]:
        check_key(Plan, key)
        check_value(Plan, key, value)
    assert switch.off != switch.on or switch.on_environ
    assert switch.off_label != switch.on_label


def test_mixed_precision_changes_the_number_format_and_no_memory_format():
    switch = make_switch("amp", CPU)
    assert switch.off == {"precision.compute": "float32", "precision.channels_last": True}
    assert switch.on == {"precision.compute": "bfloat16", "precision.channels_last": True}


def test_mixed_precision_takes_the_format_that_the_device_multiplies():
    assert make_switch("amp", CPU).on["precision.compute"] == "bfloat16"
    assert make_switch("amp", GPU).on["precision.compute"] == "bfloat16"
    assert make_switch("amp", OLD_GPU).on["precision.compute"] == "float16"


def test_the_published_figure_is_told_with_what_it_was_measured_on():
    text = make_switch("amp", CPU).published
    assert "1.11 times as fast" in text
    assert "2892 MB of device memory became 1829 MB" in text
    assert "another network on other hardware" in text
    assert make_switch("compile", CPU).published == ""


@pytest.mark.parametrize("name", NEED_CUDA)
def test_what_only_a_gpu_gives_a_meaning_to_is_refused_on_a_cpu(name):
    with pytest.raises(
        InputError, match=rf"bench: '{name}' needs a CUDA device \(.*\), and torch sees none here; choose one of amp"
    ):
        make_switch(name, CPU)
    assert make_switch(name, GPU).name == name


def test_the_device_here_is_the_one_that_a_plan_would_take():
    device = this_device()
    assert device.kind in ("cpu", "cuda")
    assert device.words
