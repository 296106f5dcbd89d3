"""A network built from its configuration, as `network_table` describes it."""

from __future__ import annotations

import torch

from voxelocity.step.fused_norm import use_exact_norms
from voxelocity.step.network_config import NetworkConfig
from voxelocity.step.network_table import NETWORKS


def build_network(config: NetworkConfig, *, num_channels: int, num_classes: int, seed: int) -> torch.nn.Module:
    """The network with weights initialized from `seed`; torch's global generator stays unchanged.

    Args:
        config: which network.
        num_channels: of the image, (b, num_channels, x, y, z).
        num_classes: of the output logits, background included.
        seed: of the initial weights.

    Raises:
        ConfigError: the user's own network cannot be built.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = NETWORKS[config.name].build(config, num_channels, num_classes)
    use_exact_norms(network)
    return network


def build_blank(config: NetworkConfig, *, num_channels: int, num_classes: int) -> torch.nn.Module:
    """The network on the device "meta", whose tensors have no values; draws no numbers. Arguments as `build_network`.

    Not for a user's own network, which may need values.
    """
    assert NETWORKS[config.name].source != "user", "a user's own network is built only to be used"
    with torch.device("meta"):
        network = NETWORKS[config.name].build(config, num_channels, num_classes)
    use_exact_norms(network)
    return network
