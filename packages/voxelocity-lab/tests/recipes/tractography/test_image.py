"""Streamlines led by an image, by one command: TRK and NIfTI in, TRK out, and images that do not fit."""

import json

import nibabel as nib
import numpy as np
import pytest
from safetensors.numpy import load_file

from voxelocity_lab.recipes.tractography.volume import (
    find_image,
    find_mask,
    find_outside_mm,
    read_shadows,
)
from voxelocity_lab.recipes.tractography.write import Space, write_tracts

SETS = {
    "network.num_points": 8,
    "network.num_waves": 4,
    "network.width": 8,
    "network.depth": 1,
    "fit.batch_size": 8,
    "fit.steps": 3,
    "sample.num_steps": 2,
    "sample.format": "trk",
}
# The first axis runs to the left.
AFFINE = np.array([[-5.0, 0, 0, 100], [0, 5, 0, -50], [0, 0, 5, -30], [0, 0, 0, 1]])


def save(path, values, affine=AFFINE):
    nib.save(nib.Nifti1Image(values.astype(np.float32), affine), path)
    return path


@pytest.fixture
def images(tmp_path):
    """FA and the main direction on one grid."""
    numbers = np.random.default_rng(0)
    direction = numbers.standard_normal((40, 20, 24, 3))
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    return save(tmp_path / "FA.nii.gz", numbers.random((40, 20, 24))), save(tmp_path / "V1.nii.gz", direction)


@pytest.fixture
def tracts(bundles_file, images, tmp_path):
    """A folder with a TRK file of each bundle, in the space of the images."""
    with np.load(bundles_file) as found:
        for number, name in enumerate(("left", "right")):
            lines = found["points"][found["bundle"] == number]
            (tmp_path / "trk").mkdir(exist_ok=True)
            write_tracts(tmp_path / "trk" / f"{name}.trk", [(lines, name)], space=Space.of_image(images[0]))
    return tmp_path / "trk"


@pytest.fixture
def both(voxelocity, tracts, tmp_path, monkeypatch):
    """Calls the command with some images."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(**images):
        sets = [f"{key}={json.dumps(value)}" for key, value in SETS.items()]
        sets += [f"{name}={path}" for name, path in images.items()]
        words = [word for setting in sets for word in ("--set", setting)]
        return voxelocity(
            "recipe", "tractography", "both", tracts, "-o", tmp_path / "run", "--device", "cpu", *words
        )  # fmt: skip

    return call


def test_one_command_leads_from_trk_and_images_to_streamlines_on_their_grid(both, images, tmp_path):
    result = both(image=images[0], direction=images[1])
    assert result.status == 0, result.err
    made = nib.streamlines.load(tmp_path / "run" / "generated.trk")
    assert np.allclose(made.header["voxel_to_rasmm"], AFFINE)
    assert made.header["dimensions"].tolist() == [40, 20, 24]
    assert len(made.streamlines) > 0
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert weights["volume.channels"].shape == (1, 7, 40, 20, 24), "FA, and six products of a direction"
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_trk_in_another_space_than_its_image_is_named_before_the_training(both, images, tmp_path):
    moved = AFFINE.copy()
    moved[:3, 3] += 500.0
    result = both(image=save(tmp_path / "moved.nii.gz", np.ones((40, 20, 24)), moved))
    assert result.status == 2
    for words in ("left.trk", "moved.nii.gz", "100 % of the points", "register them first"):
        assert words in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["image", "direction", "mask"])
def test_an_image_that_is_missing_is_named_before_the_training(both, name, tmp_path):
    result = both(**{name: tmp_path / "none.nii.gz"})
    assert result.status == 2
    assert "none.nii.gz" in result.err
    assert "the file does not exist" in result.err
    assert not (tmp_path / "run").exists()


def test_images_on_different_grids_are_named_before_the_training(both, images, tmp_path):
    result = both(image=save(tmp_path / "small.nii.gz", np.ones((20, 10, 12))), direction=images[1])
    assert result.status == 2
    assert "resample one to the other" in result.err
    assert not (tmp_path / "run").exists()


def test_the_brain_behind_streamlines_lies_where_it_is_in_space(tmp_path):
    values = np.zeros((40, 20, 24))
    values[:4, :, 20:] = 1.0  # rightmost, since the first axis runs to the left, and high up
    shadows = read_shadows(save(tmp_path / "t1.nii.gz", values), np.array([[0.0, 0.0, 0.0], [50.0, -20.0, 20.0]]))
    above, right = shadows["from above"], shadows["from the right"]
    assert above.extent_mm == (-97.5, 102.5, -52.5, 47.5)
    assert right.extent_mm == (-52.5, 47.5, -32.5, 87.5)
    assert above.picture.shape == (20, 40)
    assert above.picture[:, -4:].min() == 1.0
    assert above.picture[:, :-4].max() == 0.0
    assert right.picture[:4].min() == 1.0
    assert right.picture[4:].max() == 0.0


def test_an_image_of_another_space_is_not_shown_behind(tmp_path):
    path = save(tmp_path / "t1.nii.gz", np.ones((40, 20, 24)))
    assert read_shadows(path, np.full((3, 3), 300.0)) == {}


def test_a_t1_next_to_the_data_is_found_unless_the_model_sees_an_image(tmp_path):
    assert find_image(tmp_path, "") is None
    save(tmp_path / "b0_2mm.nii.gz", np.ones((2, 2, 2)))
    t1 = save(tmp_path / "icbm152_t1_2mm.nii.gz", np.ones((2, 2, 2)))
    assert find_image(tmp_path, "") == t1
    assert find_image(tmp_path, "FA.nii.gz").name == "FA.nii.gz"
    assert find_image(tmp_path / "tracts.npz", "") == t1


def test_an_image_that_is_zero_outside_the_brain_is_the_mask_unless_one_is_given(tmp_path):
    values = np.zeros((40, 20, 24))
    values[5:35, 5:15, 5:19] = 1.0
    brain = save(tmp_path / "t1.nii.gz", values)
    within = nib.affines.apply_affine(AFFINE, np.array([[6.0, 6, 6], [30, 12, 12]]))
    assert find_mask("", brain, within) == brain
    assert find_mask("", brain, within + 100.0) is None, "real streamlines lie elsewhere"
    assert find_mask("m.nii.gz", brain, within).name == "m.nii.gz"
    assert find_mask("", None, within) is None
    assert find_outside_mm(brain, within - AFFINE[:3, 1] * 3.0).tolist() == [10.0, 0.0]
