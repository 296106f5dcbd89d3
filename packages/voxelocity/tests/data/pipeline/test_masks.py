"""Several label files of a case: masks of one class each, put together, and labels of raters, counted."""

import nibabel as nib
import numpy as np
import pytest

from voxelocity.core.scan_formats import stem_of
from voxelocity.data.decode import read_scan
from voxelocity.data.pipeline.masks import classes_of_masks, write_merged
from voxelocity_observe.core.errors import OutputError, ScanError


@pytest.fixture
def save(tmp_path):
    def write(name, values):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nib.save(nib.Nifti1Image(np.array(values).reshape(-1, 1, 1), np.eye(4)), path)
        return name

    return write


def by_name(files):
    """Masks that have the names of their classes."""
    return {file: stem_of(file.rpartition("/")[2]) for file in files}


def merged(tmp_path, files, labels):
    shared = write_merged(tmp_path, {"p1": by_name(files)}, labels, tmp_path / "out", num_threads=1)
    return read_scan(tmp_path / "out" / "p1.nii.gz")[0].ravel().tolist(), shared["p1"]


def test_masks_of_one_class_in_several_folders_are_put_together(tmp_path, save):
    files = [
        save("p1/left/kidney.nii.gz", np.uint8([1, 0, 0, 0])),
        save("p1/right/kidney.nii.gz", np.uint8([0, 0, 0, 1])),
        save("p1/liver.nii.gz", np.uint8([0, 1, 0, 0])),
    ]
    labels, overlapping = classes_of_masks(tmp_path, {"p1": by_name(files)})
    assert (labels, overlapping) == ({0: "background", 1: "kidney", 2: "liver"}, "")
    assert merged(tmp_path, files, labels) == ([1, 2, 0, 1], 0)


def test_names_that_differ_in_capitalization_are_one_class(tmp_path, save):
    masks = {
        "p1": by_name([save("p1/Liver.nii.gz", np.uint8([1, 0])), save("p1/spleen.nii.gz", np.uint8([0, 1]))]),
        "p2": by_name([save("p2/liver.nii.gz", np.uint8([0, 1])), save("p2/Spleen.nii.gz", np.uint8([1, 0]))]),
    }
    labels, _ = classes_of_masks(tmp_path, masks)
    assert labels == {0: "background", 1: "Liver", 2: "Spleen"}
    write_merged(tmp_path, masks, labels, tmp_path / "out", num_threads=1)
    found = [read_scan(tmp_path / "out" / f"{case}.nii.gz")[0].ravel().tolist() for case in masks]
    assert found == [[1, 2], [2, 1]]


def test_overlapping_masks_name_the_worst_pair_and_are_counted(tmp_path, save):
    files = [
        save("p1/a.nii.gz", np.uint8([1, 1, 1, 1, 0])),
        save("p1/b.nii.gz", np.uint8([0, 1, 1, 0, 0])),
        save("p1/c.nii.gz", np.uint8([0, 0, 0, 1, 0])),
    ]
    labels, overlapping = classes_of_masks(tmp_path, {"p1": by_name(files)})
    assert overlapping == "Masks overlap: in p1, 2 voxels lie in a and in b (and 1 in others), and count as b."
    assert merged(tmp_path, files, labels) == ([1, 2, 2, 3, 0], 3)


def test_labels_of_raters_of_one_name_are_all_counted(tmp_path, save):
    files = [
        save(f"p1/r{number}/seg.nii.gz", np.uint8(values)) for number, values in enumerate([[1, 2], [1, 3], [0, 3]])
    ]
    assert merged(tmp_path, files, {}) == ([1, 3], 0)


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_a_label_of_a_rater_between_whole_numbers_is_refused(tmp_path, save, value):
    files = [save("p1/a.nii.gz", np.uint8([0, 1])), save("p1/b.nii.gz", np.float32([value, 1]))]
    with pytest.raises(ScanError, match=r"b\.nii\.gz: the label holds 1 values that are not whole numbers"):
        merged(tmp_path, files, {})


def test_a_mask_is_rounded_as_a_label_is(tmp_path, save):
    noisy = save("p1/liver.nii.gz", np.float32([1e-7, 0.9996, 1.0, 0.0]))
    with pytest.warns(UserWarning, match=r"away from whole numbers, to which they were rounded"):
        labels, _ = classes_of_masks(tmp_path, {"p1": by_name([noisy])})
    assert merged(tmp_path, [noisy], labels) == ([0, 1, 1, 0], 0)
    soft = save("p1/soft.nii.gz", np.float32([0.0, 0.5, 1.0, 0.0]))
    with pytest.raises(ScanError, match=r"soft\.nii\.gz: the label holds 1 values that are not whole numbers"):
        classes_of_masks(tmp_path, {"p1": by_name([soft])})


def test_a_mask_of_the_background_is_no_class(tmp_path, save):
    files = [
        save("p1/Background.nii.gz", np.uint8([1, 0, 0])),
        save("p1/liver.nii.gz", np.uint8([0, 1, 0])),
        save("p1/spleen.nii.gz", np.uint8([0, 0, 1])),
    ]
    labels, overlapping = classes_of_masks(tmp_path, {"p1": by_name(files)})
    assert (labels, overlapping) == ({0: "background", 1: "liver", 2: "spleen"}, "")
    assert merged(tmp_path, files, labels) == ([0, 1, 2], 0)


def test_a_folder_that_cannot_be_made_is_named(tmp_path, save):
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match=rf"cannot make the folder {tmp_path}/out \(File exists\); .* with -o"):
        merged(tmp_path, [save("p1/liver.nii.gz", np.uint8([0, 1]))], {0: "background", 1: "liver"})
