from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from voxelocity_lab.bench import body
from voxelocity_lab.bench.body import draw_case, make_bodies
from voxelocity_observe.core.errors import ConfigError, OutputError

SCALE = 0.2
NUM_CASES = 6


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bodies(tmp_path_factory.mktemp("data") / "phantoms", NUM_CASES, scale=SCALE)


def scans(folder: Path, key: str) -> list[nib.Nifti1Image]:
    description = json.loads((folder / "dataset.json").read_text())
    return [nib.load(folder / entry[key]) for entry in description["training"]]


def stored_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.nii.gz"))}


def test_the_description_lists_exactly_the_files_there_are(phantoms: Path) -> None:
    description = json.loads((phantoms / "dataset.json").read_text())
    listed = {path.removeprefix("./") for entry in description["training"] for path in (entry["image"], entry["label"])}
    assert listed == set(stored_bytes(phantoms))
    assert len(description["training"]) == description["numTraining"] == NUM_CASES
    assert description["modality"] == {"0": "CT"}
    assert description["labels"] == {"0": "background", "1": "spleen", "2": "liver", "3": "kidney"}
    assert description["name"]
    assert description["description"]


def test_images_are_int16_without_scaling_and_labels_hold_every_declared_class(phantoms: Path) -> None:
    for image, label in zip(scans(phantoms, "image"), scans(phantoms, "label"), strict=True):
        assert image.get_data_dtype() == np.int16
        assert (image.dataobj.slope, image.dataobj.inter) == (1.0, 0.0)
        assert label.get_data_dtype() == np.uint8
        assert image.shape == label.shape
        np.testing.assert_array_equal(image.affine, label.affine)
        assert np.unique(np.asarray(label.dataobj)).tolist() == [0, 1, 2, 3]


def test_shapes_spacings_and_orientations_differ_from_case_to_case(phantoms: Path) -> None:
    images = scans(phantoms, "image")
    assert [nib.aff2axcodes(image.affine) for image in images[:4]] == [tuple(c) for c in ("RAS", "LPS", "LAS", "PIR")]
    assert len({image.header.get_zooms() for image in images}) == NUM_CASES
    assert len({image.shape for image in images}) > NUM_CASES // 2
    directions = [image.affine[:3, :3] / np.linalg.norm(image.affine[:3, :3], axis=0) for image in images]
    is_oblique = [float(np.abs(direction).max(axis=0).min()) < 0.999 for direction in directions]
    assert is_oblique == [False, False, False, False, True, False]
    for direction in directions:
        np.testing.assert_allclose(direction.T @ direction, np.eye(3), atol=1e-6)


def test_every_file_shows_the_drawn_case_once_it_is_turned_to_ras(phantoms: Path) -> None:
    for index, (image, label) in enumerate(zip(scans(phantoms, "image"), scans(phantoms, "label"), strict=True)):
        drawn_image, drawn_label, grid = draw_case(0, index, SCALE)
        turned = nib.as_closest_canonical(image)
        np.testing.assert_array_equal(np.asarray(turned.dataobj), drawn_image)
        np.testing.assert_array_equal(np.asarray(nib.as_closest_canonical(label).dataobj), drawn_label)
        np.testing.assert_allclose(turned.header.get_zooms(), grid.spacing_mm, rtol=1e-5)
        middle = (np.array(turned.shape) - 1) / 2
        np.testing.assert_allclose(nib.affines.apply_affine(turned.affine, middle), 0, atol=1e-3)


def test_the_spleen_lies_left_and_the_liver_right_in_world_coordinates(phantoms: Path) -> None:
    for label in scans(phantoms, "label"):
        voxels = np.asarray(label.dataobj)
        spleen, liver = (nib.affines.apply_affine(label.affine, np.argwhere(voxels == k)).mean(axis=0) for k in (1, 2))
        assert spleen[0] < -20  # RAS: x grows towards the patient's right
        assert liver[0] > 10


def test_organs_differ_from_their_surroundings_but_overlap_with_look_alikes() -> None:
    image, label, _ = draw_case(0, 0, 0.5)
    for organ in (1, 2, 3):
        values = image[label == organ]
        assert 80 < np.median(values) < 210
        low, high = np.percentile(values, (10, 90))
        look_alikes = (label == 0) & (image >= low) & (image <= high)
        assert look_alikes.sum() > 0.3 * values.size  # a threshold does not solve the task


def test_a_clinical_grid_keeps_22_cases_below_250_megabytes_with_noise_as_after_reconstruction(tmp_path: Path) -> None:
    folder = make_bodies(tmp_path / "phantoms", num_cases=1)
    (image,), (label,) = (
        [np.asarray(scan.dataobj, dtype=np.float64) for scan in scans(folder, key)] for key in ("image", "label")
    )
    thin, _, wide = sorted(image.shape)
    assert 64 <= thin <= 120
    assert 160 <= wide <= 232
    assert sum(map(len, stored_bytes(folder).values())) * 22 < 250e6
    is_liver = (label == 2) & (np.abs(image - 100) < 60)
    both = is_liver[1:] & is_liver[:-1]
    assert 0.4 < np.corrcoef(image[1:][both], image[:-1][both])[0, 1] < 0.95, "neighbors have like noise"
    assert 10 < image[1:][both].std() < 40


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_voxels(phantoms: Path, tmp_path: Path) -> None:
    again = make_bodies(tmp_path / "again", NUM_CASES, scale=SCALE)
    assert stored_bytes(again) == stored_bytes(phantoms)
    other = make_bodies(tmp_path / "other", 1, seed=1, scale=SCALE)
    assert stored_bytes(other)["imagesTr/phantom_000.nii.gz"] != stored_bytes(phantoms)["imagesTr/phantom_000.nii.gz"]


def test_a_case_does_not_depend_on_how_many_others_are_made(phantoms: Path, tmp_path: Path) -> None:
    few = stored_bytes(make_bodies(tmp_path / "few", 2, scale=SCALE))
    many = stored_bytes(phantoms)
    assert few == {name: many[name] for name in few}


def test_only_files_that_are_missing_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, drawn = make_bodies(tmp_path / "phantoms", 3, scale=SCALE), list[int]()
    before = stored_bytes(folder)

    def draw(seed: int, index: int, scale: float) -> Any:
        drawn.append(index)
        return draw_case(seed, index, scale)

    monkeypatch.setattr(body, "draw_case", draw)
    (folder / "labelsTr" / "phantom_001.nii.gz").unlink()
    assert make_bodies(folder, 3, scale=SCALE) == folder
    assert drawn == [1]
    assert stored_bytes(folder) == before


def test_a_call_after_an_interrupted_one_makes_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seed: int, index: int, scale: float) -> Any:
        if index == 2:
            raise KeyboardInterrupt
        return draw_case(seed, index, scale)

    with monkeypatch.context() as patch:
        patch.setattr(body, "draw_case", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make_bodies(tmp_path / "phantoms", 3, scale=SCALE)
    assert len(stored_bytes(make_bodies(tmp_path / "phantoms", 3, scale=SCALE))) == 6


def test_other_parameters_are_refused_rather_than_overwritten(tmp_path: Path) -> None:
    folder = make_bodies(tmp_path / "phantoms", 1, scale=SCALE)
    before = stored_bytes(folder)
    with pytest.raises(OutputError, match=r"'seed': 0.*not.*'seed': 7.*delete it or name another folder"):
        make_bodies(folder, 1, seed=7, scale=SCALE)
    assert stored_bytes(folder) == before


def test_a_folder_with_other_things_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputError, match="holds no phantom data set; delete it or name another folder"):
        make_bodies(tmp_path, 1, scale=SCALE)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"num_cases": 0}, "num_cases is 0; ask for at least 1 case"),
        ({"seed": -1}, "seed is -1; use a number from 0"),
        ({"scale": 0.0}, r"scale is 0\.0; use a number above 0"),
        ({"scale": 1.6}, r"scale is 1\.6; use a number above 0"),
    ],
)
def test_a_parameter_out_of_range_is_named_with_its_cure(
    tmp_path: Path, parameters: dict[str, float], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make_bodies(tmp_path / "phantoms", **parameters)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
