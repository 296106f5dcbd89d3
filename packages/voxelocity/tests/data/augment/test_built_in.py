"""That the table of effects is complete: keys, parameters, random numbers. `test_engines.py` tries it on engines."""

from dataclasses import fields

import numpy as np
import pytest

from voxelocity.core.batch import Draw
from voxelocity.data.augment import EFFECTS, AugmentConfig, AugmentParams, sample
from voxelocity.data.augment.built_in import FIRST_STREAM, Patches

GENERAL = {"enabled", "engine", "ramp_epochs", "effects"}
ARRAYS = {field.name for field in fields(AugmentParams) if field.metadata}
NAMES = [effect.name for effect in EFFECTS]
each_effect = pytest.mark.parametrize("effect", EFFECTS, ids=NAMES)


def draws_of(effect):
    """Names of the parameters that an effect alone changes."""
    chance = (0.9, 0.9, 0.9) if isinstance(getattr(AugmentConfig(), effect.probability), tuple) else 1.0
    settings = {effect.probability: chance, "translate_voxel": (1.0, 1.0, 1.0), "cutout_value": 1.0}
    config = AugmentConfig.only(**settings)
    options = {"num_channels": 2, "patch_shape": (9, 10, 11), "config": config, "swapped_classes": (0, 2, 1)}
    params = sample([Draw(case_id="a", case=case, epoch=0) for case in range(4)], seed=1, **options)
    nothing = Patches(config=config, num_channels=2, shape=(9, 10, 11)).unchanged(4)
    # A seed without noise means nothing.
    names = ARRAYS - {"noise_seed"}
    return {name for name in names if not np.array_equal(getattr(params, name), getattr(nothing, name))}


def test_every_key_and_every_parameter_belongs_to_an_effect():
    keys = {key for effect in EFFECTS for key in (effect.probability, *effect.keys)}
    assert keys | GENERAL == AugmentConfig.model_fields.keys()
    drawn = {name for effect in EFFECTS for name in draws_of(effect)}
    assert drawn == ARRAYS - {"noise_seed"}
    assert {field.name for field in fields(AugmentParams)} - ARRAYS == {
        "swapped_classes", "votes", "gamma_keeps_moments", "coarse_axes"
    }  # fmt: skip


def test_names_are_unique_and_the_first_stream_is_closed():
    assert len({*NAMES}) == len(NAMES)
    assert len(FIRST_STREAM) == 13
    assert {*FIRST_STREAM} < {*NAMES}
    patches = Patches(config=AugmentConfig(elastic_probability=0.5), num_channels=1, shape=(8, 8, 8))
    words = [name for effect in EFFECTS for name in effect.words(patches)]
    assert len({*words}) == len(words)


SPATIAL = {"is_warped", "matrix", "offset_voxel", "is_elastic", "elastic"}


@each_effect
def test_an_effect_changes_no_parameter_of_another(effect):
    own = draws_of(effect)
    assert own
    for other in EFFECTS:
        if other is not effect:
            assert own & draws_of(other) <= SPATIAL


@each_effect
def test_an_example_has_parameters_that_the_effect_draws(effect):
    own = draws_of(effect)
    assert effect.example.keys() <= own
    config = AugmentConfig(cutout_probability=1.0, elastic_probability=1.0)
    room = Patches(config=config, num_channels=3, shape=(8, 8, 8)).unchanged(2)
    for name, example in effect.example.items():
        before = getattr(room, name).copy()
        getattr(room, name)[:] = example
        assert (getattr(room, name) != before).any()
