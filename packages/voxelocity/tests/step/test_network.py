import contextlib
import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from monai.networks.nets import DiNTS, DynUNet, TopologyInstance, TopologySearch
from monai.networks.nets import UNet as MonaiUNet

from voxelocity.step import NetworkConfig, build_network, native_norm
from voxelocity.step.fused_norm import InstanceNorm
from voxelocity_observe.core.errors import ConfigError

SMALL = {"widths": [4, 8, 8], "strides": [[2, 2, 2], [2, 2, 1]]}
DINTS = {"name": "dints", "widths": [4, 8, 16], "strides": [[2, 2, 2]] * 2, "paths": [[2, 0, 3, 0], [1, 4, 0, 5]]}


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module of a person's own in the folder where they work, with what makes a network."""
    (tmp_path / "tests_of_networks.py").write_text("""
import torch


class Own(torch.nn.Conv3d):
    def __init__(self, num_channels, num_classes):
        super().__init__(num_channels, num_classes, 1)


def number(num_channels, num_classes):
    return 3


def fixed(num_channels, num_classes):
    return torch.nn.Conv3d(num_channels, 7, 1)


def other_names(channels, classes):
    return Own(channels, classes)


class Deep(Own):
    def forward(self, image):
        return [super().forward(image)] * 2
""")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("tests_of_networks", None)


@pytest.mark.parametrize(
    "values",
    [
        {"name": "unet", **SMALL},
        {"name": "unet", **SMALL, "num_res_units": 2, "norm": "batch", "dropout": 0.1},
        {"name": "dynunet", **SMALL},
        {"name": "dynunet", **SMALL, "num_res_units": 1},
        {"name": "segresnet", "widths": [8, 16, 32], "strides": [[2, 2, 2], [2, 2, 2]]},
        {"name": "custom", "factory": "tests_of_networks:Own", **SMALL},
    ],
)
def test_every_network_answers_one_logit_per_class_and_voxel(values, own_module):
    config = NetworkConfig.parse(values)
    x, y, z = (4 * d for d in config.divisor)
    network = build_network(config, num_channels=2, num_classes=3, seed=0).eval()
    assert network(torch.zeros(1, 2, x, y, z)).shape == (1, 3, x, y, z)


def test_the_seed_alone_decides_the_initial_weights():
    config = NetworkConfig.parse({"name": "dynunet", **SMALL})
    torch.manual_seed(1)
    a = build_network(config, num_channels=1, num_classes=2, seed=5).state_dict()
    after = torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == after, "torch's global generator was not left as it was"
    b = build_network(config, num_channels=1, num_classes=2, seed=5).state_dict()
    c = build_network(config, num_channels=1, num_classes=2, seed=6).state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"num_res_units": 1},
        {"norm": "batch", "dropout": 0.2},
        {"widths": [4, 8, 8, 12], "strides": [[2, 2, 1], [1, 1, 2], [1, 1, 1]]},
    ],
)
def test_dynunet_is_that_of_monai_in_weights_and_logits(values, monkeypatch):
    config = NetworkConfig.parse({"name": "dynunet", **SMALL, **values})
    ours = build_network(config, num_channels=2, num_classes=3, seed=3)
    strides = ((1, 1, 1), *config.strides)
    # MONAI's constructor draws a number that it does not use.
    monkeypatch.setattr(torch, "rand", torch.zeros)
    torch.manual_seed(3)
    theirs = DynUNet(
        spatial_dims=3,
        in_channels=2,
        out_channels=3,
        kernel_size=[tuple(3 if set(stride) == {1} or s > 1 else 1 for s in stride) for stride in strides],
        strides=strides,
        upsample_kernel_size=config.strides,
        filters=config.widths,
        norm_name=(config.norm.upper(), {"affine": True}),
        dropout=config.dropout or None,
        res_block=config.num_res_units > 0,
    )
    named = theirs.state_dict()
    assert all(torch.equal(value, named[name]) for name, value in ours.state_dict().items())
    # MONAI registers most modules twice.
    assert len(list(ours.parameters())) == len(list(theirs.parameters()))
    image = torch.randn(2, 2, *(4 * d for d in config.divisor))
    for is_training in (True, False):
        assert torch.equal(*_logits(ours, theirs, image, is_training=is_training))


def test_instance_norm_without_loops_keeps_channels_last_and_is_that_of_torch(monkeypatch):
    monkeypatch.setattr(native_norm, "can_run", lambda features: False)
    torch.manual_seed(0)
    ours, theirs = InstanceNorm(6, affine=True), torch.nn.InstanceNorm3d(6, affine=True)
    for norm in (ours, theirs):
        norm.load_state_dict({"weight": torch.linspace(0.5, 2.0, 6), "bias": torch.linspace(-1.0, 1.0, 6)})
    image = (3.0 + torch.randn(2, 6, 4, 6, 8)).to(memory_format=torch.channels_last_3d)
    slope = torch.randn_like(image)
    found = []
    for norm in (ours, theirs):
        features = image.clone().requires_grad_()
        normed = norm(features)
        found.append((normed, *torch.autograd.grad(normed, (features, norm.weight, norm.bias), slope)))
    for own, torchs in zip(*found, strict=True):
        torch.testing.assert_close(own, torchs, rtol=1e-5, atol=2e-5)
    assert found[0][0].is_contiguous(memory_format=torch.channels_last_3d)
    assert torch.equal(ours(image.contiguous()), theirs(image.contiguous()))
    assert torch.equal(ours(image.bfloat16()), theirs(image.bfloat16()))


def _logits(ours, theirs, image, *, is_training):
    for network in (ours, theirs):
        torch.manual_seed(4)
        yield network.train(is_training)(image)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"num_res_units": 1},
        {"num_res_units": 2, "norm": "batch", "dropout": 0.2},
        {"widths": [4, 8], "strides": [[2, 2, 2]], "num_res_units": 3},
        {"widths": [4, 8, 8, 12], "strides": [[2, 2, 1], [1, 1, 2], [1, 1, 1]], "dropout": 0.2},
    ],
)
def test_unet_is_that_of_monai_in_weights_and_logits(values):
    config = NetworkConfig.parse({"name": "unet", **SMALL, **values})
    ours = build_network(config, num_channels=2, num_classes=3, seed=3)
    torch.manual_seed(3)
    theirs = MonaiUNet(
        spatial_dims=3,
        in_channels=2,
        out_channels=3,
        channels=config.widths,
        strides=config.strides,
        num_res_units=config.num_res_units,
        norm=config.norm.upper(),
        dropout=config.dropout,
    )
    named = theirs.state_dict()
    assert ours.state_dict().keys() == named.keys()
    assert all(torch.equal(value, named[name]) for name, value in ours.state_dict().items())
    image = torch.randn(2, 2, *(4 * d for d in config.divisor))
    for is_training in (True, False):
        assert torch.equal(*_logits(ours, theirs, image, is_training=is_training))


def test_the_networks_of_a_plan_are_built_without_importing_monai():
    code = """
import sys
from voxelocity.step import NetworkConfig, build_network
for name in ("dynunet", "unet"):
    config = NetworkConfig.parse({"name": name, "widths": [4, 8, 8], "strides": [[2, 2, 2], [2, 2, 1]]})
    build_network(config, num_channels=1, num_classes=2, seed=0)
assert "monai" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_divisor_is_what_the_strides_halve_in_all():
    assert NetworkConfig.parse({"name": "unet", **SMALL}).divisor == (4, 4, 2)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": "unet", "widths": [4, 8], "strides": []}, "2 widths need 1 strides, not 0"),
        ({"name": "unet", "widths": [4, 8], "strides": [[3, 1, 1]]}, "strides are 1 or 2 on each axis"),
        ({"name": "segresnet", "widths": [8, 16], "strides": [[2, 2, 1]]}, "SegResNet halves every axis"),
        ({"name": "dynunet", "widths": [4, 8], "strides": [[2, 2, 2]]}, "DynUNet has at least 3 levels, not 2"),
        (
            {"name": "vnet", "widths": [4, 8], "strides": [[2, 2, 2]]},
            "should be 'unet', 'segresnet', 'dynunet', 'swinunetr', 'dints', 'foreign' or 'custom'",
        ),
        (
            {"name": "swinunetr", **SMALL},
            "SwinUNETR halves every axis five times and its first width is a multiple of 12",
        ),
        ({"name": "dints", "widths": [8, 16], "strides": [[2, 2, 1]]}, "DiNTS halves every axis"),
        (
            DINTS | {"paths": []},
            "DiNTS with 2 strides needs network.paths, the architecture that MONAI's search found, with 4",
        ),
        (DINTS | {"paths": [[1, 0, 0]]}, "with 4 numbers in each row; docs/plan.md shows"),
        (
            DINTS | {"paths": [[2, 0, 0, 0], [0, 0, 0, 1]]},
            "row 2 of network.paths has no path, or one that begins at a",
        ),
        (DINTS | {"paths": [[2, 0, 0, 0], [0, 0, 0, 0]]}, "row 2 of network.paths has no path"),
        (DINTS | {"paths": [[6, 0, 0, 0]]}, "less than or equal to 5"),
        ({"name": "unet", "paths": [[1]], **SMALL}, "only DiNTS has paths, not unet; remove network.paths"),
        ({"name": "custom", **SMALL}, "needs the name custom and a factory such as my_networks:build, not name custom"),
        ({"name": "unet", "factory": "a:b", **SMALL}, "not name unet with factory 'a:b'"),
    ],
)
def test_a_network_that_cannot_be_is_refused_in_words(values, text):
    with pytest.raises(ConfigError, match=text.replace("[", r"\[")):
        NetworkConfig.parse(values)


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (
            "no_such_module:build",
            "'no_such_module:build' cannot be imported .No module named 'no_such_module'.; write package",
        ),
        ("tests_of_networks:Other", "cannot be imported .module 'tests_of_networks' has no attribute 'Other'"),
        ("tests_of_networks", "cannot be imported"),
        (":build", "cannot be imported"),
        ("tests_of_networks:number", "returned a int, not a torch.nn.Module"),
        ("tests_of_networks:other_names", "cannot be called with num_channels and num_classes .missing a required"),
        ("tests_of_networks:torch", "cannot be called with num_channels and num_classes .*not a callable"),
    ],
)
def test_a_network_of_ones_own_that_cannot_be_made_is_refused_in_words(own_module, factory, text):
    config = NetworkConfig.parse({"name": "custom", "factory": factory, **SMALL})
    with pytest.raises(ConfigError, match=text):
        build_network(config, num_channels=1, num_classes=2, seed=0)


@pytest.mark.parametrize(("factory", "found"), [("fixed", r"shape \(2, 7, 4, 4, 4\)"), ("Deep", "a list")])
def test_a_network_of_ones_own_with_other_outputs_than_asked_for_is_refused_at_its_first_image(
    own_module, factory, found
):
    config = NetworkConfig.parse({"name": "custom", "factory": f"tests_of_networks:{factory}", **SMALL})
    network = build_network(config, num_channels=1, num_classes=3, seed=0)
    with pytest.raises(ConfigError, match=rf"networks:{factory}' returns {found}.*\(2, 3, 4, 4, 4\): 3 outputs"):
        network(torch.zeros(2, 1, 4, 4, 4))


@pytest.mark.nightly
def test_swinunetr_answers_one_logit_per_class_and_voxel():
    widths = [12, 24, 48, 96, 192, 384]
    config = NetworkConfig.parse({"name": "swinunetr", "widths": widths, "strides": [[2, 2, 2]] * 5})
    network = build_network(config, num_channels=2, num_classes=3, seed=0)
    assert network(torch.zeros(1, 2, 64, 32, 32)).shape == (1, 3, 64, 32, 32)


def test_dints_is_monais_of_the_architecture_that_a_search_decodes():
    """Of a search space that was never trained, so that its numbers are random."""
    torch.manual_seed(5)
    with contextlib.redirect_stdout(io.StringIO()):
        search = TopologySearch(channel_mul=0.25, num_blocks=3, num_depths=3)
        torch.nn.init.normal_(search.log_alpha_a)
        torch.nn.init.normal_(search.log_alpha_c)
        nodes, kept, operations, _ = search.decode()
        instance = TopologyInstance([kept, operations], channel_mul=0.25, num_blocks=3, num_depths=3)
    theirs = DiNTS(instance, 1, 3, node_a=torch.from_numpy(nodes))
    paths = np.where(kept > 0, operations + 1, 0).tolist()
    config = NetworkConfig.parse(
        {"name": "dints", "widths": [8, 16, 32, 64], "strides": [[2, 2, 2]] * 3, "paths": paths}
    )
    ours = build_network(config, num_channels=1, num_classes=3, seed=0)
    theirs.load_state_dict(ours.state_dict())
    assert ours.node_a.tolist() == nodes.tolist()
    image = torch.randn(1, 1, *(2 * d for d in config.divisor))
    assert torch.equal(ours(image), theirs(image))
    assert ours(image).shape == (1, 3, *image.shape[2:])


def test_dints_says_nothing_while_it_is_built(capsys):
    build_network(NetworkConfig.parse(DINTS), num_channels=1, num_classes=2, seed=0)
    assert capsys.readouterr().out == ""
