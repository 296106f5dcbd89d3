"""Prediction and truth of classes that were merged or overlap: what counts as one, and what is compared whole."""

from __future__ import annotations

import numpy as np
import pytest

from voxelocity.core.volume import Grid
from voxelocity.data.decode import write_scan
from voxelocity.data.decode.mask_folder import mask_stem
from voxelocity.infer.evaluation.pairs import Declared
from voxelocity.infer.evaluation.volumes import read_pair
from voxelocity.metrics import case_score

SHAPE = (5, 6, 7)
GRID = Grid.of(SHAPE, np.eye(4))


def write_masks(folder, masks):
    folder.mkdir()
    for name, mask in masks.items():
        write_scan(folder / f"{name}.nii.gz", mask.astype(np.uint8), GRID)
    return folder


def random_masks(seed, names):
    rng = np.random.default_rng(seed)
    return {name: rng.random(SHAPE) < 0.5 for name in names}


def dice_of(pair, ignored=None):
    score = case_score(
        "a", pair.prediction, pair.truth, pair.class_names, (1.0, 1.0, 1.0), regions=pair.regions, ignored=ignored,
    )  # fmt: skip
    return score.dice


def expected_dice(predicted, true):
    pairs = {name: (predicted[name], mask) for name, mask in true.items()}
    return {name: 2 * (mask & other).sum() / (mask.sum() + other.sum()) for name, (mask, other) in pairs.items()}


@pytest.mark.parametrize("has_masks", [True, False])
def test_what_a_merged_class_stands_for_is_found_by_value_and_by_name(tmp_path, has_masks):
    label = np.random.default_rng(0).integers(0, 4, SHAPE).astype(np.uint8)
    write_scan(tmp_path / "prediction.nii.gz", (label == 3).astype(np.uint8), GRID)
    truth = write_masks(tmp_path / "truth", {"left": label == 1, "right": label == 2, "other": label == 3})
    write_scan(tmp_path / "truth.nii.gz", label, GRID)
    pair = read_pair(
        tmp_path / "prediction.nii.gz",
        truth if has_masks else tmp_path / "truth.nii.gz",
        Declared(labels={0: "background", 1: "both", 3: "other"}, merged={1: {1: "left", 2: "right"}}),
        scan=None,
        note=lambda kind, text: pytest.fail(text),
    )
    assert pair.class_names == ("background", "both", "other")
    assert np.array_equal(pair.truth, np.array([0, 1, 1, 2])[label])
    assert np.array_equal(pair.prediction, label == 3)


@pytest.mark.parametrize("names", [("organ", "lesion", "cyst"), [f"part {number}" for number in range(12)]])
def test_masks_that_overlap_are_each_compared_whole(tmp_path, names):
    # Twelve random masks overlap in more ways than uint8 can number.
    predicted, true, notes = random_masks(0, names), random_masks(1, names), []
    pair = read_pair(
        write_masks(tmp_path / "prediction", predicted),
        write_masks(tmp_path / "truth", true),
        Declared(),
        scan=None,
        note=lambda kind, text: notes.append(text),
    )
    assert dice_of(pair) == pytest.approx(expected_dice(predicted, true))
    assert all("structures overlap" in note and "each of them is compared separately" in note for note in notes)
    assert len(notes) == 2


def test_masks_that_overlap_follow_values_that_cannot(tmp_path):
    true, notes = random_masks(1, ("organ", "lesion")), []
    label = np.where(true["lesion"], 2, true["organ"].astype(int))
    write_scan(tmp_path / "prediction.nii.gz", label.astype(np.uint8), GRID)
    pair = read_pair(
        tmp_path / "prediction.nii.gz",
        write_masks(tmp_path / "truth", true),
        Declared(labels={0: "background", 1: "organ", 2: "lesion"}),
        scan=None,
        note=lambda kind, text: notes.append(text),
    )
    assert np.array_equal(pair.truth, label)
    both = (true["organ"] & true["lesion"]).sum()
    assert f"{both} voxels lie in organ and in lesion, and count as lesion" in notes[0]


@pytest.mark.parametrize("are_masks", [(True, True), (True, False), (False, True)])
def test_masks_of_declared_regions_are_those_regions(tmp_path, are_masks):
    sides = [random_masks(seed, ("organ", "lesion")) for seed in (0, 1)]
    paths = []
    for number, (masks, is_folder) in enumerate(zip(sides, are_masks, strict=True)):
        if is_folder:
            paths.append(write_masks(tmp_path / f"{number}", masks))
            continue
        label = (masks["organ"] * 1 + masks["lesion"] * 2).astype(np.uint8)
        paths.append(tmp_path / f"{number}.nii.gz")
        write_scan(paths[-1], label, GRID)
    # Ignored voxels are in the truth alone.
    is_ignored = np.zeros(SHAPE, bool)
    if not are_masks[1]:
        is_ignored[0] = True
        write_scan(paths[1], np.where(is_ignored, 4, label).astype(np.uint8), GRID)
    declared = Declared(
        labels={0: "background", 1: "rest of organ", 2: "rest of lesion", 3: "label 3"},
        regions={"organ": (1, 3), "lesion": (2, 3)},
        ignore_value=4,
    )
    pair = read_pair(*paths, declared, scan=None, note=lambda kind, text: pytest.fail(text))
    predicted, true = ({name: mask & ~is_ignored for name, mask in masks.items()} for masks in sides)
    assert dice_of(pair, len(pair.class_names)) == pytest.approx(expected_dice(predicted, true))


def test_segments_that_regions_were_drawn_with_count_in_each_of_them(tmp_path):
    label = np.random.default_rng(0).integers(0, 4, SHAPE)
    drawn = {name: label == value for value, name in ((1, "rest of organ"), (2, "lesion"))}
    declared = Declared(
        labels={0: "background", 1: "rest of organ", 2: "lesion"}, regions={"organ": (1, 2), "lesion": (2,)}
    )
    paths = write_masks(tmp_path / "prediction", drawn), tmp_path / "truth.nii.gz"
    write_scan(paths[1], np.where(label == 3, 0, label).astype(np.uint8), GRID)
    pair = read_pair(*paths, declared, scan=None, note=lambda kind, text: pytest.fail(text))
    assert dice_of(pair) == {"organ": 1.0, "lesion": 1.0}


def test_masks_are_found_by_the_names_that_predictions_have(tmp_path):
    label = np.random.default_rng(0).integers(0, 3, SHAPE).astype(np.uint8)
    write_scan(tmp_path / "truth.nii.gz", label, GRID)
    masks = write_masks(tmp_path / "prediction", {mask_stem("kidney/left?"): label == 1, "other": label == 2})
    declared = Declared(labels={0: "background", 1: "kidney/left?", 2: "other"})
    pair = read_pair(masks, tmp_path / "truth.nii.gz", declared, scan=None, note=lambda kind, text: pytest.fail(text))
    assert np.array_equal(pair.prediction, label)
