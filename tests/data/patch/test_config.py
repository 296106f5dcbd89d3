import pytest

from voxelocity.core.errors import ConfigError
from voxelocity.data.patch import PatchConfig


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"shape_voxel": [8, 8]}, "shape_voxel"),
        ({"shape_voxel": [8, 0, 8]}, "shape_voxel"),
        ({"shape_voxel": [8, 8, 8], "foreground_share": 1.1}, "foreground_share"),
        ({"shape_voxel": [8, 8, 8], "draws_per_case": 0}, "draws_per_case"),
    ],
)
def test_values_out_of_range_are_refused_by_name(values, named):
    with pytest.raises(ConfigError, match=named):
        PatchConfig.parse(values)


def test_config_survives_plain_data():
    config = PatchConfig(shape_voxel=(8, 9, 10), foreground_share=0.25, draws_per_case=3)
    assert PatchConfig.parse(config.to_plain()) == config
