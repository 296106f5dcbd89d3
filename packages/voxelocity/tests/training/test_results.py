import csv
import math
from pathlib import Path

import numpy as np
import pytest

from voxelocity.core.records import CaseScore
from voxelocity.core.volume import Grid, Volume
from voxelocity.report import RunFacts, StepRecord, ValidationRecord
from voxelocity.report.records import DatasetFacts
from voxelocity.training.results import SlicePictures, write_metrics


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
@pytest.mark.parametrize(
    ("plane", "place"),
    [("axial", [0, 4]), ("coronal", [2, 4]), ("sagittal", [2, 0])],
    ids=["front up, left on the right", "head up, left on the right", "head up, front on the left"],
)
def test_slices_are_the_way_radiologists_look_at_them(directions, plane, place, tmp_path):
    volume = scan("a", directions)
    pictures = SlicePictures()
    pictures.add(CaseScore(case_id="a", dice={"x": 0.5}), volume, volume.label)
    pictures.save(tmp_path / "slices.npz")
    saved = np.load(tmp_path / "slices.npz", allow_pickle=False)
    (truth,), (image,) = saved[f"0_{plane}_truth"], saved[f"0_{plane}_image"]
    assert np.argwhere(truth).tolist() == [place]
    assert np.argwhere(image == image.max()).tolist() == [place]
    assert str(saved["0_title"]) == "a, Dice 0.500"


def test_ignored_voxels_are_neither_missed_nor_wrong_in_a_slice(tmp_path):
    volume = scan("a", RAS)
    label, prediction = np.array(volume.label), np.array(volume.label)
    label[3], prediction[3, 0] = 2, 1
    pictures = SlicePictures()
    pictures.add(CaseScore(case_id="a", dice={"x": 1.0}), volume.with_(label=label), prediction, ignored=2)
    pictures.save(tmp_path / "slices.npz")
    saved = np.load(tmp_path / "slices.npz", allow_pickle=False)
    for plane in ("axial", "coronal", "sagittal"):
        truth, predicted = saved[f"0_{plane}_truth"], saved[f"0_{plane}_prediction"]
        assert truth.tolist() == predicted.tolist()
        assert np.count_nonzero(truth) == 1


def test_slices_go_evenly_through_the_foreground_from_the_feet_to_the_head(tmp_path):
    label = np.zeros((40, 600, 60), np.uint8)
    label[10:30, 200:400, 11:32] = 1
    height = np.broadcast_to(np.arange(60, dtype=np.float32), label.shape)
    affine = np.diag([-2.0, 1.0, 3.0, 1.0])
    volume = Volume(case_id="a", image=height[None], label=label, grid=Grid.of(label.shape, affine))
    pictures = SlicePictures()
    pictures.add(CaseScore(case_id="a", dice={"x": None}), volume, label)
    pictures.save(tmp_path / "slices.npz")
    saved = np.load(tmp_path / "slices.npz", allow_pickle=False)
    means = saved["0_axial_image"].mean(axis=(1, 2))
    assert saved["0_axial_truth"].shape == (7, 200, 14), "every third voxel of 600 x 40"
    assert saved["0_axial_pixel_mm"].tolist() == [3.0, 6.0]
    assert (np.diff(means) > 0).all()
    assert saved["0_axial_truth"].any(axis=(1, 2)).all()
    assert (saved["0_coronal_truth"].shape, saved["0_coronal_pixel_mm"].tolist()) == ((7, 60, 40), [3.0, 2.0])


def test_worst_and_best_are_among_the_kept(tmp_path):
    pictures = SlicePictures()
    for number in range(40):
        volume = scan(f"c{number}", RAS)
        pictures.add(CaseScore(case_id=volume.case_id, dice={"x": number / 40}), volume, volume.label)
    pictures.save(tmp_path / "s.npz")
    saved = np.load(tmp_path / "s.npz", allow_pickle=False)
    titles = [str(saved[f"{i}_title"]) for i in range(4)]
    assert titles[0].startswith("c0,")
    assert titles[3].startswith("c39,")
    assert len(saved.files) == 4 * (1 + 3 * 4)


def test_a_class_in_no_case_has_an_empty_cell_and_is_counted(tmp_path):
    steps = StepRecord(
        time_s=1.0, step=5, epoch=0, loss=0.5, learning_rate=1e-3, num_steps=5, num_images=10, seconds=2.0, wait_s=0.5
    )
    dice = {"liver": 0.8, "cyst": math.nan}
    validation = ValidationRecord(time_s=2.0, step=5, seconds=1.0, mean_dice=0.8, dice=dice, is_best=True)
    facts = RunFacts(
        folder=Path("run"),
        status="finished",
        dataset=DatasetFacts(name="d"),
        steps=(steps,),
        validations=(validation,),
    )
    write_metrics(facts, tmp_path / "metrics.csv")
    with (tmp_path / "metrics.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["images_per_s"], first["mean_dice"], first["num_absent_classes"]) == ("5.0", "", "")
    assert (second["mean_dice"], second["num_absent_classes"]) == ("0.8", "1")
    assert (second["dice_liver"], second["dice_cyst"]) == ("0.8", "")
