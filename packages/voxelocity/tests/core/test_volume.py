import numpy as np
import pytest

from voxelocity.core.volume import Grid, Volume, slabs


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


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7, 5, 3), (1, 4, 6, 5), (2, 3, 4, 5), (1, 1, 1), (0, 3, 2)])
def test_pieces_of_both_arrays_cover_every_value_once_and_agree(shape, order):
    source = np.asarray(np.arange(np.prod(shape), dtype=np.int16).reshape(shape), order=order)
    target = np.zeros(shape, np.float64)
    for values, written in slabs(source, target, max_values=10):
        assert values.shape == written.shape
        written += values + 1
    np.testing.assert_array_equal(target, source.astype(np.float64) + 1)


def test_pieces_are_small_and_follow_memory():
    source = np.zeros((50, 40, 30), np.float32).transpose(2, 1, 0)  # the last axis is the slowest
    pieces = [piece for (piece,) in slabs(source, max_values=3000)]
    assert max(piece.size for piece in pieces) <= 3000
    assert pieces[0].shape == (2, 30, 40)
    cut = [piece.size for (piece,) in slabs(np.zeros((2, 100, 100)), max_values=250)]
    assert max(cut) <= 250, "a plane that is too large is cut too"
    assert sum(cut) == 20_000
