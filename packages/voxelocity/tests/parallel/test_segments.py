"""Networks as segments: run one after the other they are the network, and cuts are the best there are."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.networks import nets

from voxelocity.parallel.pipeline import cheapest_cuts
from voxelocity.parallel.segments import Segment, segments_of
from voxelocity.step import NetworkConfig, build_network
from voxelocity_observe.core.errors import InputError

_TWOS = [[2, 2, 2]] * 2


def ours(**values):
    config = NetworkConfig.parse({"widths": [4, 8, 8], "strides": _TWOS, **values})
    return build_network(config, num_channels=1, num_classes=2, seed=0)


NETWORKS = {
    "dynunet": lambda: ours(name="dynunet"),
    "dynunet with a stem": lambda: ours(name="dynunet", stem_stride=[2, 2, 2]),
    "unet": lambda: ours(name="unet", num_res_units=2),
    "unet of two levels": lambda: ours(name="unet", widths=[4, 8], strides=_TWOS[:1]),
    "segresnet": lambda: ours(name="segresnet", widths=[8, 16, 32]),
    "MONAI's DynUNet": lambda: nets.DynUNet(
        3, 1, 2, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2], filters=[4, 8, 8]
    ),
    "MONAI's UNet": lambda: nets.UNet(3, 1, 2, channels=[4, 8, 8], strides=[2, 2], num_res_units=1),
    "sequential": lambda: torch.nn.Sequential(torch.nn.Conv3d(1, 3, 1), torch.nn.ReLU(), torch.nn.Conv3d(3, 2, 1)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_segments_one_after_the_other_are_the_network(name):
    network = NETWORKS[name]().eval()
    image = torch.randn(2, 1, 16, 16, 16, generator=torch.Generator().manual_seed(0))
    stack = (image,)
    with torch.no_grad():
        for segment in segments_of(network):
            stack = segment(stack)
        torch.testing.assert_close(stack[0], network(image), rtol=0.0, atol=0.0)
    assert len(stack) == 1
    assert len(segments_of(network)) >= 3


def test_a_network_says_itself_where_it_can_be_cut():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.head = (torch.nn.Conv3d(1, 1, 1) for _ in range(3))

        def segments(self):
            return [Segment("replace", part, (part,)) for part in (self.first, self.last)]

    with pytest.raises(
        InputError, match=r"Own has parameters that are in none of its segments \(head\.weight, 2 in all"
    ):
        segments_of(Own())
    own = Own()
    del own.head
    assert [segment.modules for segment in segments_of(own)] == [(own.first,), (own.last,)]


def test_a_network_without_segments_is_refused_with_the_cure():
    with pytest.raises(InputError, match=r"Conv3d cannot be split into segments; .* a method segments\(\)"):
        segments_of(torch.nn.Conv3d(1, 1, 1))


@given(st.lists(st.lists(st.integers(0, 9), min_size=5, max_size=5), min_size=1, max_size=3), st.integers(6, 30))
def test_cuts_are_the_best_of_all_that_fit(costs, limit):
    sizes, limits = (
        [[5 - cost % 3 for cost in of_stage] for of_stage in costs],
        [limit - 2 * n for n in range(len(costs))],
    )
    found = {}
    for cuts in itertools.combinations(range(1, 5), len(costs) - 1):
        bounds = (0, *cuts, 5)
        parts = [slice(*pair) for pair in itertools.pairwise(bounds)]
        if all(sum(sizes[n][part]) <= limits[n] for n, part in enumerate(parts)):
            found[cuts] = max(sum(costs[n][part]) for n, part in enumerate(parts))
    if not found:
        with pytest.raises(InputError, match="a stage does not fit into memory"):
            cheapest_cuts(costs, sizes=sizes, limits=limits)
        return
    assert found[cheapest_cuts(costs, sizes=sizes, limits=limits)] == min(found.values())


def test_more_ranks_than_segments_are_refused():
    with pytest.raises(InputError, match="2 segments cannot be split for 3 ranks, because it has fewer segments than"):
        cheapest_cuts([[1.0, 1.0]] * 3)
