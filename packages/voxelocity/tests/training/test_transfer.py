"""Weights taken over: layers by name and structure, channels and classes by name, and what is said of it."""

import pytest
import torch

from voxelocity.step import NetworkConfig, build_network
from voxelocity.training.transfer import Correspondence, Ends, Roles, find_roles, read_mapping, take_over
from voxelocity_observe.core.errors import ConfigError

DYNUNET = {"name": "dynunet", "widths": [4, 4, 8], "strides": [[2, 2, 2]] * 2}


def ends(channels, *outputs, has_background=True):
    return Ends(channels=tuple(channels), outputs=outputs, has_background=has_background)


def building(values):
    config = NetworkConfig.parse(values)
    return lambda num_channels, num_outputs: build_network(
        config, num_channels=num_channels, num_classes=num_outputs, seed=num_channels + 10 * num_outputs
    )


def taken(before, now, *, old=DYNUNET, new=DYNUNET, given=None):
    """The earlier network, the new one before and after, and what was taken over."""
    source = building(old)(len(before.channels), len(before.outputs))
    network = building(new)(len(now.channels), len(now.outputs))
    fresh = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    roles = find_roles(building(new), num_channels=len(now.channels), num_outputs=len(now.outputs))
    done = take_over(source.state_dict(), network, roles, Correspondence.of(before, now, given))
    return source.state_dict(), fresh, network.state_dict(), done


def test_channels_and_outputs_are_found_by_what_grows_with_them():
    roles = find_roles(building(DYNUNET), num_channels=4, num_outputs=4)
    found = {name: role for name, role in roles.items() if role != Roles()}
    # As many channels and classes as features mislead nobody.
    assert found == {
        "input_block.conv1.conv.weight": Roles(channels=(1,)),
        "output_block.conv.conv.weight": Roles(outputs=(0,)),
        "output_block.conv.conv.bias": Roles(outputs=(0,)),
    }
    unit = {"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]], "num_res_units": 2}
    assert Roles(outputs=(0, 1)) in find_roles(building(unit), num_channels=1, num_outputs=3).values()


def test_the_same_network_is_taken_over_whole():
    same = ends(["CT"], "background", "liver", "spleen")
    source, _, after, done = taken(same, same)
    assert all(torch.equal(after[name], source[name]) for name in after)
    assert done.num_taken == done.num_all == sum(tensor.numel() for tensor in source.values())
    assert (
        done.text()
        == f"{done.num_all:,} of {done.num_all:,} parameters taken over (100.0%); classes taken over: liver, spleen"
    )


def test_classes_are_matched_by_name_whatever_their_order_and_case():
    before = ends(["CT"], "background", "Left kidney", "liver", "spleen")
    source, fresh, after, done = taken(before, ends(["ct"], "background", "spleen", "aorta", "left_kidney"))
    for leaf in ("weight", "bias"):
        old, new, now = (state[f"output_block.conv.conv.{leaf}"] for state in (source, fresh, after))
        for row, expected in enumerate((old[0], old[3], new[2], old[1])):
            assert torch.equal(now[row], expected)
    assert (
        "classes taken over: spleen, left_kidney; classes initialized: aorta (the model also has liver)" in done.text()
    )
    assert done.num_all - done.num_taken == fresh["output_block.conv.conv.weight"][0].numel() + 1


def test_channels_are_matched_by_name_and_new_ones_begin_small():
    before = ends(["T1", "T2"], "background", "a")
    source, _, after, done = taken(before, ends(["FLAIR", "t2", "T1"], "background", "a"))
    old, now = source["input_block.conv1.conv.weight"], after["input_block.conv1.conv.weight"]
    torch.testing.assert_close(now, torch.stack([0.1 * old.mean(1), old[:, 1], old[:, 0]], 1))
    assert "channel FLAIR is new and starts with 0.1 times the mean of the earlier ones" in done.text()
    _, _, after, done = taken(ends(["MRI"], "background", "a"), ends(["PET", "CT"], "background", "a"))
    weight = after["input_block.conv1.conv.weight"]
    assert torch.equal(weight[:, 0], weight[:, 1])
    assert "no channel name matches: PET, CT start with the mean" in done.text()


def test_as_many_channels_as_before_continue_in_their_order_where_no_name_says_otherwise():
    source, _, after, done = taken(ends(["T1", "T2"], "background", "a"), ends(["T2", "PET"], "background", "a"))
    old, now = source["input_block.conv1.conv.weight"], after["input_block.conv1.conv.weight"]
    assert torch.equal(now, old[:, [1, 0]])
    assert "channel PET continues T1" in done.text()


def test_given_names_win_and_an_empty_one_initializes():
    before, now = ends(["MRI"], "background", "core", "ball"), ends(["T1"], "background", "kernel", "ball")
    to = Correspondence.of(before, now, {"kernel": "Core", "ball": "", "T1": ""})
    assert to.outputs == (0, 1, None)
    assert to.channels == (None,)
    assert "classes taken over: kernel (from core)" in to.output_text()
    for given, said in (
        ({"kernle": "core"}, "the data set has no channel or class kernle"),
        ({"kernel": "cor"}, "the model has no"),
    ):
        with pytest.raises(ConfigError, match=said):
            Correspondence.of(before, now, given)


def test_regions_have_no_background_to_continue():
    to = Correspondence.of(ends(["CT"], "background", "core"), ends(["CT"], "whole", "core", has_background=False))
    assert to.outputs == (None, 1)


def test_layers_that_no_name_finds_are_found_by_their_shapes():
    deeper = {"name": "dynunet", "widths": [4, 4, 8, 16], "strides": [[2, 2, 2]] * 3}
    same = ends(["CT"], "background", "a")
    source, _, after, done = taken(same, same, new=deeper)
    assert torch.equal(after["input_block.conv2.conv.weight"], source["input_block.conv2.conv.weight"])
    # What was the coarsest level is the last but one.
    assert torch.equal(after["downsamples.1.conv1.conv.weight"], source["bottleneck.conv1.conv.weight"])
    assert "downsamples.1.conv1.conv" in done.moved
    assert "bottleneck.conv1.conv" in done.initialized
    assert 0.0 < done.share < 1.0
    assert "matched by structure, not by name" in done.text()
    assert "are initialized, because no layer has this name and shape" in done.text()


def test_nothing_of_another_network_is_taken_over_by_chance():
    same = ends(["CT"], "background", "a")
    wide = {"name": "dynunet", "widths": [5, 6, 7], "strides": [[2, 2, 2]] * 2}
    _, fresh, after, done = taken(same, same, new=wide)
    assert done.num_taken == 0
    assert all(torch.equal(after[name], fresh[name]) for name in after)


def test_a_mapping_is_read_or_refused():
    assert read_mapping(["T1 = MRI", "aorta="]) == {"T1": "MRI", "aorta": ""}
    for pairs, said in ((["T1"], r"--map 'T1' is not NEW=OLD"), (["a=b", "a=c"], "gives a two names, b and c")):
        with pytest.raises(ConfigError, match=said):
            read_mapping(pairs)
