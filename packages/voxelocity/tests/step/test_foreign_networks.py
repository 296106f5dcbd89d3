"""Networks of other toolkits, built from their descriptions: they compute and learn, and nonsense is refused."""

import pytest
import torch
from infer.models.test_nnunet import ARCHITECTURE
from monai.networks import nets

from voxelocity.step import NetworkConfig, build_network
from voxelocity.step.foreign_networks import FOREIGN, levels_of
from voxelocity.step.nnunet_network import Architecture, PlannedUNet
from voxelocity_observe.core.errors import ConfigError

DYNUNET = {
    "spatial_dims": 3,
    "kernel_size": [3, 3, 3],
    "strides": [1, 2, [2, 2, 1]],
    "upsample_kernel_size": [2, [2, 2, 1]],
}
RESIDUAL = {key: value for key, value in ARCHITECTURE.items() if key != "n_conv_per_stage"} | {
    "n_blocks_per_stage": [1, 2, 1]
}
DESCRIBED = {
    "PlannedUNet": ARCHITECTURE,
    "UNet": {"spatial_dims": 3, "channels": [4, 8], "strides": [2], "num_res_units": 2, "norm": "batch"},
    "AttentionUnet": {"spatial_dims": 3, "channels": [4, 8], "strides": [2]},
    "BasicUNet": {"spatial_dims": 3, "features": [4, 4, 8, 8, 8, 4]},
    "DynUNet": {**DYNUNET, "filters": [4, 8, 8], "deep_supervision": True, "deep_supr_num": 1},
    "SegResNet": {"init_filters": 8, "blocks_down": [1, 1], "blocks_up": [1]},
    "SegResNetDS": {"init_filters": 8, "blocks_down": [1, 1, 1], "dsdepth": 3},
    "SwinUNETR": {"feature_size": 12, "img_size": [32, 32, 32]},
    "VNet": {"spatial_dims": 3},
}


def config_of(name, arguments=None):
    architecture = {"class": name, **(DESCRIBED[name] if arguments is None else arguments)}
    widths, strides = levels_of(architecture)
    values = {"name": "foreign", "architecture": architecture, "widths": widths, "strides": strides}
    return NetworkConfig.parse(values)


@pytest.mark.parametrize(
    "name", [name if name != "SwinUNETR" else pytest.param(name, marks=pytest.mark.slow) for name in FOREIGN]
)
def test_every_described_network_learns_in_all_of_its_weights(name):
    if name == "SwinUNETR":
        pytest.importorskip("einops")
    config = config_of(name)
    # What is stored next to the weights is read again.
    assert NetworkConfig.parse(config.to_plain()) == config
    network = build_network(config, num_channels=2, num_classes=3, seed=0).train()
    sides = [max(2 * part, 16) if name != "SwinUNETR" else 64 for part in config.divisor]
    logits = network(torch.randn(1, 2, *sides))
    assert logits.shape == (1, 3, *sides)
    logits.square().mean().backward()
    # A weight without a gradient would keep several ranks waiting for it.
    assert [key for key, weight in network.named_parameters() if weight.grad is None] == []


def test_weights_of_nnunet_fit_but_for_its_coarser_outputs():
    for arguments in (ARCHITECTURE, RESIDUAL):
        theirs = PlannedUNet(Architecture.parse(arguments), num_channels=1, num_classes=3)
        ours = build_network(config_of("PlannedUNet", arguments), num_channels=1, num_classes=3, seed=0)
        missing = theirs.state_dict().keys() - ours.state_dict().keys()
        assert missing == {"decoder.seg_layers.0.weight", "decoder.seg_layers.0.bias"}
        ours.load_state_dict(theirs.state_dict(), strict=False)
        image = torch.randn(1, 1, 4, 16, 16)
        torch.testing.assert_close(ours.eval()(image), theirs.eval()(image))


def test_weights_of_monai_fit():
    arguments = {**DESCRIBED["SegResNet"], "norm": ["GROUP", {"num_groups": 4}]}
    theirs = nets.SegResNet(**arguments, in_channels=1, out_channels=2)
    ours = build_network(config_of("SegResNet", arguments), num_channels=1, num_classes=2, seed=0)
    ours.load_state_dict(theirs.state_dict())
    image = torch.randn(1, 1, 16, 16, 16)
    torch.testing.assert_close(ours.eval()(image), theirs.eval()(image))


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ({}, r"has the class None; networks that can be trained from a description are PlannedUNet, UNet"),
        ({"class": "os.system"}, "has the class 'os.system'"),
        ({"class": "UNet", "channels": [4, 8]}, "does not describe a UNet that can be trained .*strides"),
        ({"class": "UNet", "channels": [4, 8, 8], "strides": [2]}, "channels has 3 entries and strides 1"),
        ({"class": "UNet", "channels": [4, 10**6], "strides": [2]}, "numbers up to 4096"),
        ({"class": "UNet", "channels": [4, 8], "strides": [2], "num_res_units": 1000}, "up to 64 layers"),
        ({"class": "UNet", "channels": [4, 8], "strides": [2], "act": "x" * 100}, "more than short strings"),
        ({"class": "UNet", "channels": [4, 8], "strides": [2], "act": [[[[["PRELU"]]]]]}, "more than short strings"),
        ({"class": "SegResNet", "init_filters": 4096}, "up to 4096"),
        ({"class": "SegResNetDS", "resolution": [1, 1, 2]}, "its resolution decides its strides"),
        ({"class": "PlannedUNet", **ARCHITECTURE, "conv_op": "os.system"}, "conv_op"),
        ({"class": "PlannedUNet", **ARCHITECTURE, "strides": [[2, 2, 2]] * 3}, "its first level has the stride"),
    ],
)
def test_what_describes_no_network_is_refused(architecture, said):
    values = {"name": "foreign", "architecture": architecture, "widths": [4, 8], "strides": [[2, 2, 2]]}
    with pytest.raises(ConfigError, match=said):
        NetworkConfig.parse(values)


def test_other_strides_and_arguments_than_those_of_the_class_are_refused():
    with pytest.raises(ConfigError, match=r"network.strides .* are not those of network.architecture"):
        NetworkConfig.parse({**config_of("UNet").to_plain(), "strides": [[2, 2, 1]]})
    for arguments, said in (
        ({"sizes": 3}, "has no argument sizes"),
        ({"norm": "none of these"}, "cannot be made from"),
    ):
        config = config_of("UNet", {**DESCRIBED["UNet"], **arguments})
        with pytest.raises(ConfigError, match=said):
            build_network(config, num_channels=1, num_classes=2, seed=0)
