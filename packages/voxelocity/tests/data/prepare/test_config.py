from __future__ import annotations

import pytest

from voxelocity.data.prepare import PrepareConfig
from voxelocity_observe.core.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"spacing_mm": (1, 0, 1)}, "spacing_mm"),
        ({"spacing_mm": (1, 1)}, "spacing_mm"),
        ({"spacing_mm": "auto"}, "spacing_mm"),
        ({"orientation": "LPS"}, "orientation = 'LPS'"),
        ({"margin_voxel": -1}, "margin_voxel = -1"),
        ({"dtype": "int16"}, "dtype = 'int16'"),
        ({"foreground_per_class": 0}, "foreground_per_class = 0"),
        ({"intensity": {"mode": "window", "low": 1.0}}, "mode 'window' needs high"),
        ({"intensity": {"mode": "window", "low": 2, "high": 2}}, "low 2.0 must be smaller than its high 2.0"),
        ({"intensity": {"std": 0.0}}, "intensity.std"),
        ({"orientaton": "RAS"}, "did you mean 'orientation'"),
    ],
)
def test_values_out_of_range_are_refused_by_name(values: dict, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        PrepareConfig.parse(values)
    assert said in str(error.value)
