import pytest

from voxelocity.data.augment import AugmentConfig
from voxelocity_observe.core.errors import ConfigError


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("flip_probability", [0.5, 0.5, 1.5]),
        ("affine_probability", -0.1),
        ("rotation_degrees", [10, 10]),
        ("scale_range", [0.0, 1.0]),
        ("gamma_range", [-1.0, 1.0]),
        ("noise_std_range", [-0.1, 0.1]),
    ],
)
def test_values_out_of_range_are_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=key):
        AugmentConfig.parse({key: value})


def test_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(ConfigError, match=r"scale_range = .* begins at 1\.2 and ends below it, at 0\.8; swap them"):
        AugmentConfig.parse({"scale_range": [1.2, 0.8]})


def test_only_what_is_named_is_done():
    config = AugmentConfig.only(noise_probability=0.4, noise_std_range=(0.0, 0.2))
    chances = {name: value for name, value in config if name.endswith("_probability")}
    assert chances.pop("noise_probability") == 0.4
    assert all(not any(value) if isinstance(value, tuple) else value == 0.0 for value in chances.values())
    assert config.noise_std_range == (0.0, 0.2)
