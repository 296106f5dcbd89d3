from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from voxelocity.core.cases import Cases
from voxelocity.core.volume import VolumeRef
from voxelocity.data.pipeline import declare_labels
from voxelocity_observe.core.errors import DatasetError


def cases_with(folder: Path, values: list[int]) -> Cases:
    label = np.zeros((4, 4, 4), np.int32)
    label.flat[: len(values)] = values
    nib.save(nib.Nifti1Image(label, np.eye(4)), folder / "label.nii")
    ref = VolumeRef(case_id="a", images=(folder / "image.nii",), label=folder / "label.nii")
    return Cases(name="toy", root=folder, layout="csv", channels=("CT",), labels={}, refs=(ref,))


def test_classes_are_the_values_found(tmp_path):
    assert declare_labels(cases_with(tmp_path, [3, 65535]), num_threads=1).label_values == (0, 3, 65535)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([-1, 2], "the value -1 outside 0 to 65535"),
        ([70000, 1, 80000], "the value 70000 and 1 more outside 0 to 65535"),
    ],
)
def test_values_that_no_prediction_could_be_written_with_are_refused(tmp_path, values, said):
    with pytest.raises(DatasetError, match=f"{said}; change these values in the files"):
        declare_labels(cases_with(tmp_path, values), num_threads=1)


def test_images_in_the_place_of_labels_are_noticed(tmp_path):
    label = np.arange(300, dtype=np.int16).reshape(5, 6, 10)
    nib.save(nib.Nifti1Image(label, np.eye(4)), tmp_path / "label.nii")
    ref = VolumeRef(case_id="a", images=(tmp_path / "image.nii",), label=tmp_path / "label.nii")
    cases = Cases(name="toy", root=tmp_path, layout="csv", channels=("CT",), labels={}, refs=(ref,))
    with pytest.raises(DatasetError, match=r"hold 300 different values.*or images\? Up to 65,535 can be trained if"):
        declare_labels(cases, num_threads=1)
