"""Preprocessed cases, whole or box by box, and files that cannot be read; needs no nnU-Net."""

import pickle
import zipfile

import numpy as np
import pytest

from voxelocity.core.region import Region
from voxelocity.nnunet.cases import NnunetCases
from voxelocity_observe.core.errors import DatasetError

BOX = Region((-2, 3, 1), (6, 12, 9))


class Cases:
    """One case as a data set of nnU-Net gives it out."""

    identifiers = ("case_0",)

    def __init__(self, *, label_shape=(1, 9, 10, 8), notes=None, error=None):
        numbers = np.random.default_rng(0)
        self.image = numbers.normal(size=(2, 9, 10, 8)).astype(np.float32)
        self.label = numbers.integers(-1, 3, label_shape, dtype=np.int16)
        self.notes, self.error = {"class_locations": {}} if notes is None else notes, error

    def load_case(self, identifier):
        if self.error is not None:
            raise self.error
        return self.image, self.label, None, self.notes


class Damaged:
    shape = (2, 9, 10, 8)

    def __getitem__(self, key):
        raise RuntimeError("Error while decompressing")


@pytest.mark.parametrize("max_bytes", [0, 10**6])
def test_of_a_box_only_what_is_needed_is_read(max_bytes):
    dataset = Cases()
    case = NnunetCases(dataset, max_bytes=max_bytes).open("case_0")
    whole = case.read(BOX, 0)
    assert whole.start == (2, 0, 0)
    np.testing.assert_array_equal(whole.image, dataset.image[:, :6, 3:10, 1:8])
    np.testing.assert_array_equal(whole.label, dataset.label[0, :6, 3:10, 1:8] + 1)
    part = case.read(BOX, 0, Region((1, 2, 4), (5, 6, 7)))
    assert part.start == (2, 2, 4), "counted from the first voxel of the box"
    np.testing.assert_array_equal(part.image, dataset.image[:, 0:3, 5:9, 5:8])
    np.testing.assert_array_equal(part.label, dataset.label[0, 0:3, 5:9, 5:8] + 1)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file", "case_0.b2nd"), RuntimeError("not a Blosc2 frame"), EOFError("ends early"),
        zipfile.BadZipFile("File is not a zip file"), pickle.UnpicklingError("truncated"), ValueError("magic"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read_are_named(error):
    with pytest.raises(DatasetError, match=r"the preprocessed files of case_0 cannot be read .*; preprocess this data"):
        NnunetCases(Cases(error=error), max_bytes=10**6).open("case_0")


def test_notes_of_another_release_and_other_shapes_are_refused():
    with pytest.raises(DatasetError, match=r"case_0 cannot be read \(KeyError: 'class_locations'\)"):
        NnunetCases(Cases(notes={"spacing": 1}), max_bytes=10**6).open("case_0")
    with pytest.raises(DatasetError, match=r"case_0 has \(9, 10, 8\) voxels and its label \(9, 10, 7\)"):
        NnunetCases(Cases(label_shape=(1, 9, 10, 7)), max_bytes=10**6).open("case_0")


@pytest.mark.parametrize("max_bytes", [0, 10**6])
def test_damage_that_shows_when_voxels_are_read_names_the_case(max_bytes):
    dataset = Cases()
    dataset.image = Damaged()
    with pytest.raises(DatasetError, match=r"case_0 cannot be read \(RuntimeError: Error while decompressing\)"):
        NnunetCases(dataset, max_bytes=max_bytes).open("case_0").read(BOX, 0)
