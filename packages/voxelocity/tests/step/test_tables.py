"""What the tables of losses, optimizers and networks say is what the code does, and documentation shows all of it."""

from typing import get_args

import pytest
import torch

from voxelocity.parallel.segments import CUTS, segments_of
from voxelocity.planning import Plan
from voxelocity.step import (
    LOSSES,
    NETWORKS,
    OPTIMIZERS,
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    build_loss,
    build_network,
    build_optimizer,
)
from voxelocity.step.fused_norm import InstanceNorm
from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.core.errors import ConfigError, InputError

ROOT = CHECKOUT
TABLES = {"loss.name": LOSSES, "optimizer.name": OPTIMIZERS, "network.name": NETWORKS}
TWOS = [[2, 2, 2]]
BASIC = {"class": "BasicUNet", "spatial_dims": 3, "features": [4, 4, 8, 8, 16, 4]}
SMALL = {
    "unet": {"widths": [4, 8, 8], "strides": TWOS * 2},
    "segresnet": {"widths": [8, 16, 32], "strides": TWOS * 2},
    "dynunet": {"widths": [4, 8, 8], "strides": TWOS * 2},
    "swinunetr": {"widths": [12, 24, 48, 96, 192, 384], "strides": TWOS * 5},
    "dints": {"widths": [4, 8, 16], "strides": TWOS * 2, "paths": [[2, 0, 3, 0], [1, 4, 0, 5]]},
    "foreign": {"widths": [4, 4, 8, 8, 16], "strides": TWOS * 4, "architecture": BASIC},
    "custom": {"widths": [4, 8], "strides": TWOS, "factory": "a:b"},
}
BUILT = [name for name, kind in NETWORKS.items() if kind.source != "user"]


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, table in TABLES.items() for name in table])
def test_the_plan_page_has_the_row_of_each(key, name):
    kind, page = TABLES[key][name], (ROOT / "docs" / "plan.md").read_text()
    keys = ", ".join(f"`{own}`" for own in kind.keys) or "none"
    row = f"| `{name}` | {kind.words} | {kind.paper} | {keys} |"
    assert row in page.partition(f"| `{key}` |")[2].partition("\n\n")[0], f"docs/plan.md lacks {row}"


@pytest.mark.parametrize("key", TABLES)
def test_a_configuration_takes_the_names_of_its_table(key):
    section, _, name = key.partition(".")
    model = Plan.model_fields[section].annotation
    assert get_args(model.model_fields[name].annotation) == tuple(TABLES[key])
    assert {own for kind in TABLES[key].values() for own in kind.keys} <= model.model_fields.keys()


def test_the_first_loss_is_the_default():
    assert LossConfig().name == next(iter(LOSSES))


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_depends_on_the_keys_that_its_entry_names(name):
    random = torch.Generator().manual_seed(0)
    logits, label = torch.randn(2, 3, 4, 4, 4, generator=random), torch.randint(0, 3, (2, 4, 4, 4), generator=random)
    fields = {key: LossConfig.model_fields[key] for kind in LOSSES.values() for key in kind.keys}
    # Between the default and the largest that is allowed.
    others = {
        key: (field.default + next(m.le for m in field.metadata if hasattr(m, "le"))) / 2
        for key, field in fields.items()
    }
    for regions in ((), ((1, 2), (2,), (1,))):
        usual = build_loss(LossConfig(name=name), regions=regions)(logits, label.byte())
        read = {
            key
            for key, value in others.items()
            if build_loss(LossConfig(name=name, **{key: value}), regions=regions)(logits, label.byte()) != usual
        }
        assert read == set(LOSSES[name].keys)


def _trained(name, **options):
    """An optimizer after a step, and its parameters."""
    weights = [torch.nn.Parameter(torch.ones(shape)) for shape in ((4, 3), (5, 4), (6, 5), (4, 6), (4,))]
    optimizer = build_optimizer(OptimizerConfig(name=name, learning_rate=0.1, **options), weights)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    return optimizer, weights


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_what_its_entry_says(name):
    kind, (optimizer, weights) = OPTIMIZERS[name], _trained(name)

    def settings(**options):
        groups = _trained(name, **options)[0].state_dict()["param_groups"]
        return [{key: value for key, value in group.items() if key != "params"} for group in groups]

    others = {"momentum": 0.5, "second_momentum": 0.5}
    assert {key for key, value in others.items() if settings(**{key: value}) != settings()} == set(kind.keys)
    # Of an inner matrix, which is what most of a network consists of.
    ordered = [weight for group in optimizer.param_groups for weight in group["params"]]
    (number,) = (number for number, weight in enumerate(ordered) if weight is weights[1])
    kept = optimizer.state_dict()["state"][number].values()
    assert sum(value.shape == weights[1].shape for value in kept) == kind.num_kept
    # What torch's GradScaler asks.
    assert getattr(optimizer, "_step_supports_amp_scaling", False) == kind.skips_on_device


@pytest.mark.parametrize("name", BUILT)
def test_a_network_is_what_its_entry_says(name):
    kind = NETWORKS[name]

    def built(**options):
        config = NetworkConfig.parse({"name": name, **SMALL[name], **options})
        return build_network(config, num_channels=2, num_classes=3, seed=0)

    network, (first, *rest) = built(), SMALL[name]["widths"]
    others = {"widths": [first, *(2 * width for width in rest)], "norm": "batch", "num_res_units": 1, "dropout": 0.3}
    read = {key for key, value in others.items() if str(built(**{key: value})) != str(network)}
    assert read == others.keys() & set(kind.keys)
    assert any(isinstance(module, InstanceNorm) for module in network.modules()) == kind.has_own_norms
    if kind.title in {cut.title for cut in CUTS}:
        assert len(segments_of(network)) >= 3
    else:
        with pytest.raises(InputError, match="cannot be split into segments; use DynUNet, UNet, SegResNet or an nn"):
            segments_of(network)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_refuses_keys_of_other_networks(name):
    given = {"stem_stride": [2, 2, 2], "paths": SMALL["dints"]["paths"], "factory": "a:b", "architecture": BASIC}
    for key, value in given.items():
        if key in NETWORKS[name].keys:
            NetworkConfig.parse({"name": name, **SMALL[name], key: value})
        else:
            with pytest.raises(ConfigError, match=f"not {name}|not name {name}"):
                NetworkConfig.parse({"name": name, **SMALL[name], key: value})


def test_the_scale_page_names_what_a_pipeline_cuts():
    *titles, last = (cut.title for cut in CUTS if cut.title in {kind.title for kind in NETWORKS.values()})
    assert f"splits {', '.join(titles)} and {last} (ours and MONAI's)" in (ROOT / "docs" / "scale.md").read_text()
