"""Class names in the headers of labels and in tables next to them."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest
import SimpleITK

from voxelocity.data.decode.label_tables import slicer_table, snap_table
from voxelocity.data.pipeline.class_names import find_class_names, lacking_text
from voxelocity_observe.core.errors import DatasetError

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


def test_names_with_spaces_and_with_underscores_are_the_same(tmp_path):
    spec = {0: "background", 1: "left kidney", 2: "T 12"}
    (tmp_path / "labels.label").write_bytes(snap_table(spec))
    for name in ("labels.ctbl", "a.txt"):
        (tmp_path / name).write_bytes(slicer_table(spec))
    for names in (["labels.label", "labels.ctbl"], ["labels.ctbl", "labels.label"], ["a.txt"]):
        found, where = find_class_names(tmp_path, names, [], [1, 2])
        assert {value: name.replace("_", " ") for value, name in found.items()} == {1: "left kidney", 2: "T 12"}
        assert where == names[0]


@pytest.mark.parametrize(
    "lines",
    [
        ["1 liver 1 2 3 255", "1 spleen 1 2 3 255", "2 kidney 1 2 3 255"],
        ["1 liver 1 2 3 255", "2 Liver 1 2 3 255"],
        ["1 Background 1 2 3 255", "2 liver 1 2 3 255"],
    ],
    ids=["a value twice", "a name twice", "the background"],
)
def test_a_table_that_does_not_tell_classes_apart_names_none(tmp_path, lines):
    (tmp_path / "a.ctbl").write_text("\n".join(lines))
    assert find_class_names(tmp_path, ["a.ctbl"], [], [1, 2]) == ({}, "")


def segmentation(path, names):
    """A label whose segments are numbered as they were drawn."""
    image = SimpleITK.GetImageFromArray(np.zeros((2, 3, 4), np.uint8))
    for number, name in enumerate(names, start=1):
        image.SetMetaData(f"Segment{number - 1}_Name", name)
        image.SetMetaData(f"Segment{number - 1}_LabelValue", str(number))
    SimpleITK.WriteImage(image, str(path), True)
    return path


def test_segments_that_have_other_numbers_in_another_file_are_refused(tmp_path):
    files = [segmentation(tmp_path / f"{number}.seg.nrrd", ["liver", "left kidney"]) for number in (1, 2)]
    # Also where one of them was not drawn.
    files.append(segmentation(tmp_path / "3.seg.nrrd", ["Liver"]))
    assert find_class_names(tmp_path, [], files, [1, 2]) == ({1: "liver", 2: "left kidney"}, "1.seg.nrrd")
    files.append(segmentation(tmp_path / "4.seg.nrrd", ["Left_kidney", "liver"]))
    with pytest.raises(DatasetError, match=r"Left_kidney is 2 in .*1\.seg\.nrrd and 1 in .*4\.seg\.nrrd.*same number"):
        find_class_names(tmp_path, [], files, [1, 2])


def test_segments_of_two_names_are_not_named_and_that_is_said(tmp_path):
    files = [segmentation(tmp_path / f"{name}.seg.nrrd", [name]) for name in ("tumor", "tumour")]
    assert find_class_names(tmp_path, [], files, [1]) == (
        {}, "1 is tumor in tumor.seg.nrrd and tumour in tumour.seg.nrrd: are these one class?"
    )  # fmt: skip


def test_cases_that_lack_a_class_that_most_have_are_named():
    names = {"a": {"liver", "spleen", "Background"}, "b": {"liver", "tumor", "background"}, "c": {"liver", "spleen"}}
    assert lacking_text(names).startswith("1 of 3 cases lack a class that most have, as b lacks spleen; its voxels")
    assert lacking_text({**names, "b": {"spleen", "liver"}}) == ""
    assert lacking_text({}) == ""
