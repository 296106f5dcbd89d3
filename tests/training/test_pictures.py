import numpy as np
import pytest

from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Grid, Volume
from voxelocity.training.pictures import SlicePictures


def scan(case_id, directions):
    """A volume whose one bright voxel lies front left of the patient at mid height, on axes of any direction."""
    image = np.zeros((5, 5, 5), np.float32)
    label = np.zeros((5, 5, 5), np.uint8)
    world = np.array([-2.0, 2.0, 0.0])  # RAS+: left is negative x, front positive y
    affine = np.eye(4)
    affine[:3, :3] = np.array(directions, float).T
    affine[:3, 3] = -affine[:3, :3] @ [2, 2, 2]
    voxel = tuple(np.rint(np.linalg.inv(affine) @ [*world, 1.0])[:3].astype(int))
    image[voxel], label[voxel] = 9.0, 1
    return Volume(case_id=case_id, image=image[None], label=label, grid=Grid.of(image.shape, affine))


RAS, LPS, PIR = (
    [(1, 0, 0), (0, 1, 0), (0, 0, 1)],
    [(-1, 0, 0), (0, -1, 0), (0, 0, 1)],
    [(0, -1, 0), (0, 0, -1), (1, 0, 0)],
)


@pytest.mark.parametrize("directions", [RAS, LPS, PIR])
def test_front_is_up_and_the_patients_left_is_on_the_right(directions, tmp_path):
    volume = scan("a", directions)
    pictures = SlicePictures()
    pictures.add(CaseScore(case_id="a", dice={"x": 0.5}), volume, volume.label)
    pictures.save(tmp_path / "slices.npz")
    saved = np.load(tmp_path / "slices.npz", allow_pickle=False)
    assert np.argwhere(saved["0_truth"]).tolist() == [[0, 4]]
    assert np.argwhere(saved["0_image"] == saved["0_image"].max()).tolist() == [[0, 4]]
    assert str(saved["0_title"]) == "a, Dice 0.500"


def test_worst_and_best_are_among_the_kept(tmp_path):
    pictures = SlicePictures(limit=3)
    for number in range(40):
        volume = scan(f"c{number}", RAS)
        pictures.add(CaseScore(case_id=volume.case_id, dice={"x": number / 40}), volume, volume.label)
    pictures.save(tmp_path / "s.npz")
    saved = np.load(tmp_path / "s.npz", allow_pickle=False)
    titles = [str(saved[f"{i}_title"]) for i in range(3)]
    assert titles[0].startswith("c0,")
    assert titles[2].startswith("c39,")
    assert len(saved.files) == 12
