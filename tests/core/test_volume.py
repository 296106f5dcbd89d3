import numpy as np

from voxelocity.core.volume import Grid, Volume


def test_a_grid_knows_its_spacing_also_when_oblique():
    angle = np.deg2rad(20)
    rotation = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    affine = np.eye(4)
    affine[:3, :3] = rotation * [0.5, 0.8, 3.0]
    np.testing.assert_allclose(Grid.of((4, 5, 6), affine).spacing_mm, [0.5, 0.8, 3.0])


def test_grids_are_close_only_if_every_voxel_lies_at_the_same_place():
    a = Grid.of((100, 100, 100), np.diag([1.0, 1.0, 1.0, 1.0]))
    scaled = Grid.of((100, 100, 100), np.diag([1.0001, 1.0, 1.0, 1.0]))
    assert a.is_close(Grid.of((100, 100, 100), np.diag([1.000001, 1.0, 1.0, 1.0])))
    assert not a.is_close(scaled)
    assert not a.is_close(Grid.of((100, 100, 99), np.eye(4)))


def test_bytes_of_a_volume_count_image_label_and_foreground():
    volume = Volume(
        case_id="c",
        image=np.zeros((2, 3, 4, 5), np.float32),
        label=np.zeros((3, 4, 5), np.uint8),
        grid=Grid.of((3, 4, 5), np.eye(4)),
        foreground={1: np.zeros(7, np.int32)},
    )
    assert volume.num_bytes == 2 * 60 * 4 + 60 + 28
    assert volume.spec.image_bytes == 2 * 60 * 4
