import pytest

from voxelocity.data.patch import PatchConfig
from voxelocity_observe.core.errors import ConfigError


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"shape_voxel": [8, 8]}, "shape_voxel"),
        ({"shape_voxel": [8, 0, 8]}, "shape_voxel"),
        ({"shape_voxel": [8, 8, 8], "foreground_share": 1.1}, "foreground_share"),
        ({"shape_voxel": [8, 8, 8], "draws_per_case": 0}, "draws_per_case"),
        (
            {"shape_voxel": [8, 8, 8], "growth": [{"until_share": s, "shape_voxel": [4, 4, 4]} for s in (0.5, 0.5)]},
            r"growth ends its stages at \[0.5, 0.5\]; each until_share must be larger than the one before",
        ),
    ],
)
def test_values_out_of_range_are_refused_by_name(values, named):
    with pytest.raises(ConfigError, match=named):
        PatchConfig.parse(values)


@pytest.mark.parametrize(("share", "side"), [(0.0, 4), (0.19, 4), (0.2, 6), (0.5, 8), (1.0, 8)])
def test_patches_grow_with_the_share_of_the_training_that_is_done(share, side):
    stages = [{"until_share": 0.2, "shape_voxel": [4, 4, 4]}, {"until_share": 0.5, "shape_voxel": [6, 6, 6]}]
    config = PatchConfig.parse({"shape_voxel": [8, 8, 8], "foreground_share": 0.25, "growth": stages})
    assert config.at(share).shape_voxel == (side,) * 3
    assert config.at(share).foreground_share == 0.25
    assert PatchConfig.parse(config.to_plain()) == config
