"""What is tried alone after the counted steps: items made twice, and the network with and without autocast."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from voxelocity_observe.diagnose.recorder.experiments import network_in_half, used_again

NAMES = ["network, float32", "network, 16 bits"]


class Kept:
    """Keeps an item that it has made, if it is told to."""

    def __init__(self, keeps):
        self.keeps, self.kept = keeps, set()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index not in self.kept:
            time.sleep(0.004)
            self.kept |= {index} if self.keeps else set()
        return index


@pytest.mark.parametrize("keeps", [True, False])
def test_items_made_twice_show_whether_the_data_set_keeps_them(keeps):
    entry = SimpleNamespace(dataset=Kept(keeps), described={"num_workers": 1})
    first, again = used_again(entry, 5.0)
    assert (first["name"], again["name"]) == ("item, first use", "item, used again")
    assert len(first["seconds"]) == len(again["seconds"]) == 3
    assert min(first["seconds"]) >= 0.004
    assert (min(again["seconds"]) < 0.003) is keeps


def test_no_item_is_made_twice_where_none_can_be_or_no_worker_makes_them():
    assert used_again(SimpleNamespace(dataset=Kept(True), described={"num_workers": 0}), 1.0) == []
    assert used_again(SimpleNamespace(dataset=None, described={"num_workers": 1}), 1.0) == []


def test_the_network_alone_is_tried_in_both_formats_and_stays_as_it_was():
    network = nn.Sequential(nn.Conv3d(1, 4, 3), nn.BatchNorm3d(4))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    found = network_in_half(torch, network, (2, 1, 8, 8, 8), torch.device("cpu"), 0.01)
    assert [fields["name"] for fields in found] == NAMES
    assert all(len(fields["seconds"]) >= 3 for fields in found), "a single pair says little on a busy machine"
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_network_that_cannot_take_the_batch_is_told_with_its_error():
    found = network_in_half(torch, nn.Conv3d(3, 4, 3), (2, 1, 8, 8, 8), torch.device("cpu"), 0.01)
    assert all("the network raised RuntimeError" in fields["note"] and not fields["seconds"] for fields in found)
