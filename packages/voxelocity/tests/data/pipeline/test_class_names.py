"""Class names that TotalSegmentator keeps in the header of a label."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest

from voxelocity.data.pipeline.class_names import find_class_names

XML = (
    '<?xml version="1.0" encoding="UTF-8"?> <CaretExtension> <Date><![CDATA[2023]]></Date> '
    '<VolumeInformation Index="0"> <LabelTable> '
    '<Label Key="1" Red="0.2" Green="1" Blue="0" Alpha="1"><![CDATA[spleen]]></Label> '
    '<Label Key="2" Red="1" Green="0" Blue="1" Alpha="1"><![CDATA[kidney_right]]></Label> '
    "</LabelTable> </VolumeInformation> </CaretExtension>"
)


@pytest.mark.parametrize("name", ["a.nii.gz", "a.nii.bz2", "a.nii"])
def test_names_in_the_header_of_a_label_are_found(tmp_path, name):
    image = nib.Nifti1Image(np.zeros((3, 4, 5), np.uint8), np.eye(4))
    image.header.extensions.append(nib.nifti1.Nifti1Extension(0, XML.encode()))
    nib.save(image, tmp_path / name)
    found = find_class_names(tmp_path, [], [tmp_path / name], [1, 2])
    assert found == ({1: "spleen", 2: "kidney_right"}, name)
    assert find_class_names(tmp_path, [], [tmp_path / name], [1, 2, 3]) == ({}, "")


def test_a_damaged_label_has_no_names(tmp_path):
    (tmp_path / "a.nii.gz").write_bytes(b"\x1f\x8b\x08\x00damaged")
    assert find_class_names(tmp_path, [], [tmp_path / "a.nii.gz"], [1]) == ({}, "")
