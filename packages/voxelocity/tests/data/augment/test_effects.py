"""Effects of the user's own; the example is the one of docs/augmentation.md."""

import re
import sys

import numpy as np
import pytest
import torch

from voxelocity.core.batch import Draw
from voxelocity.data.augment import AugmentConfig, Effects
from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.core.errors import ConfigError

DOCS = CHECKOUT / "docs" / "augmentation.md"
BROKEN = """
class NoMethods:
    pass


class Half:
    def draw(self, rng, num_channels):
        return None
"""


@pytest.fixture(autouse=True)
def my_effects(tmp_path, monkeypatch):
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "my_effects.py").write_text(code + BROKEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_effects", raising=False)
    yield
    sys.modules.pop("my_effects", None)


def config(*effects, **fields):
    chosen = [{"factory": f"my_effects:{name}", "probability": 1.0, **more} for name, more in effects]
    return AugmentConfig.parse({**AugmentConfig.only().to_plain(), "effects": chosen, **fields})


def draws(count=3, epoch=0):
    return [Draw(case_id=str(case), case=case, epoch=epoch, draw=0) for case in range(count)]


def applied(config, *, epoch=0, seed=7):
    image = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 2, 6, 5, 4)).astype(np.float32) * 3.0)
    label = torch.zeros((3, 6, 5, 4), dtype=torch.uint8)
    before = image.clone()
    Effects(config).apply(draws(epoch=epoch), image, label, seed=seed)
    return before, image


def test_effects_change_every_sample_by_their_own_numbers():
    before, after = applied(config(("Spike", {"settings": {"strength": 2.0}})))
    changes = (after - before)[:, 0]
    assert (changes.abs().amax(dim=(1, 2, 3)) > 0.0).all()
    assert not torch.equal(changes[0], changes[1])
    assert torch.equal(after, applied(config(("Spike", {"settings": {"strength": 2.0}})))[1]), "the same seed"
    assert not torch.equal(after, applied(config(("Spike", {"settings": {"strength": 2.0}})), seed=8)[1])


def test_effects_are_applied_in_their_order():
    both = [("Spike", {"settings": {"strength": 5.0}}), ("Saturation", {})]
    limited, waved = applied(config(*both))[1], applied(config(*reversed(both)))[1]
    assert limited.max() <= 3.0 < waved.max()


@pytest.mark.parametrize("fields", [{"enabled": False}, {"effects": []}, {"ramp_epochs": 10}])
def test_effects_that_are_off_or_not_yet_due_change_nothing(fields):
    before, after = applied(config(("Spike", {}), **fields))
    assert torch.equal(before, after)


def test_the_probability_is_the_share_of_patches_and_rises_with_the_ramp():
    several = [Draw(case_id=str(case), case=case, epoch=5, draw=0) for case in range(400)]
    image = torch.zeros((400, 1, 2, 2, 2))
    half = config(("Spike", {"probability": 0.8}), ramp_epochs=10)
    Effects(half).apply(several, image, torch.zeros((400, 2, 2, 2), dtype=torch.uint8), seed=1)
    share = (image.abs().amax(dim=(1, 2, 3, 4)) > 0.0).float().mean()
    assert 0.3 < share < 0.5


def test_an_effect_runs_on_a_device_only_if_it_says_how(monkeypatch):
    assert Effects(config()).run_on_device
    effects = Effects(config(("Saturation", {})))
    assert not effects.run_on_device
    import my_effects

    monkeypatch.setattr(my_effects.Saturation, "apply_on_device", lambda *all: None, raising=False)
    assert effects.run_on_device


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        ({"factory": "my_effects:Gone"}, "data.augment.effects.factory 'my_effects:Gone' cannot be imported"),
        ({"factory": "my_effects:NoMethods"}, "without the methods draw.rng, num_channels. and apply"),
        ({"factory": "my_effects:Half"}, "made a Half without the methods"),
        ({"factory": "my_effects:Spike", "settings": {"strenght": 1}}, "unexpected keyword argument 'strenght'"),
    ],
)
def test_an_effect_that_cannot_be_used_is_refused_in_words(effect, text):
    with pytest.raises(ConfigError, match=text):
        Effects(AugmentConfig.parse({"effects": [effect]}))


def test_a_factory_without_a_module_is_refused_by_the_configuration():
    with pytest.raises(ConfigError, match="effects"):
        AugmentConfig.parse({"effects": [{"factory": "Spike"}]})
