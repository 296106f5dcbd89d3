"""What is written down of a network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from voxelocity_observe.diagnose.recorder.describe import describe_network


@pytest.mark.parametrize(
    ("kinds", "layout", "told"),
    [
        (nn.Conv3d, torch.channels_last_3d, "channels_last_3d"),
        (nn.Conv3d, torch.contiguous_format, "contiguous"),
        (nn.Conv2d, torch.channels_last, "channels_last"),
    ],
)
def test_the_order_in_memory_is_that_of_a_convolution_with_several_channels(kinds, layout, told):
    network = nn.Sequential(kinds(1, 4, 3), kinds(4, 4, 1), kinds(4, 2, 3)).to(memory_format=layout)
    assert describe_network(network, "float32")["memory_format"] == told


class Block(nn.Module):
    """Of the user's: a module that has some of a convolution's attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel_size, self.in_channels, self.weight = 3, 2, 0.5
        self.body = nn.Conv3d(2, 4, 3)


def test_a_block_with_some_attributes_of_a_convolution_is_none():
    assert describe_network(nn.Sequential(Block()), "float32")["channels"] == [[2, 4]]


def test_networks_in_which_both_orders_are_one_or_that_have_no_convolution_are_told_as_such():
    assert describe_network(nn.Sequential(nn.Conv3d(1, 4, 3)), "float32")["memory_format"] == "contiguous"
    assert describe_network(nn.Linear(2, 2), "float32")["memory_format"] == ""
