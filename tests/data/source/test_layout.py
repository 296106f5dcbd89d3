"""What is said of folders that people have and that hold no list of cases."""

import pytest

from voxelocity.core.errors import DatasetError
from voxelocity.data.source import open_cases


@pytest.mark.parametrize(
    ("files", "layout", "row"),
    [
        (
            ["images/a.nii.gz", "labels/a.nii.gz"],
            "images in images/ and labels in labels/",
            "images/a.nii.gz,labels/a.nii.gz",
        ),
        (
            ["imagesTr/a_0000.nii.gz", "labelsTr/a.nii.gz"],
            "nnU-Net's raw folder without its dataset.json",
            "imagesTr/a_0000.nii.gz,labelsTr/a.nii.gz",
        ),
        (
            ["sub-01/anat/sub-01_T1w.nii.gz", "derivatives/labels/sub-01/anat/sub-01_T1w_dseg.nii.gz"],
            "a BIDS data set",
            "sub-01/anat/sub-01_T1w.nii.gz,derivatives/labels/sub-01/anat/sub-01_T1w_dseg.nii.gz",
        ),
        (
            ["p1/ct.nii.gz", "p1/organs_seg.nii.gz", "p2/ct.nii.gz", "p2/organs_seg.nii.gz"],
            "a folder for each patient",
            "p1/ct.nii.gz,p1/organs_seg.nii.gz",
        ),
        (["a.nii", "a_mask.nii", "b.nii", "b_mask.nii"], "scans side by side", "a.nii,a_mask.nii"),
        (["a.nii"], "scans side by side", "a.nii,LABEL FILE OF THIS CASE"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_layout_is_recognized_and_its_table_begun(tmp_path, touch, files, layout, row):
    touch(*files)
    with pytest.raises(DatasetError) as caught:
        open_cases(tmp_path)
    assert f"it looks like {layout} ({len(files)} scans): list the cases in {tmp_path / 'cases.csv'}" in str(
        caught.value
    )
    lines = str(caught.value).splitlines()
    assert lines[1:3] == ["    image,label", f"    {row}"]
    assert "see docs/data-sets.md" in lines[-1]


def test_the_table_that_is_proposed_opens(tmp_path, touch):
    touch("images/a.nii.gz", "labels/a.nii.gz", "images/b.nii.gz", "labels/b.nii.gz")
    with pytest.raises(DatasetError) as caught:
        open_cases(tmp_path)
    lines = str(caught.value).splitlines()
    (tmp_path / "cases.csv").write_text("\n".join(line for line in lines if line.startswith("    ")))
    assert [ref.label.parent.name for ref in open_cases(tmp_path)] == ["labels", "labels"]


@pytest.mark.parametrize(
    ("file", "tool"),
    [("series/1.dcm", "dcm2niix -z y"), ("DICOMDIR", "dcm2niix"), ("a.nrrd", "3D Slicer"), ("a/b.mha", "SimpleITK")],
)
def test_other_formats_are_answered_with_the_tool_that_converts_them(tmp_path, touch, file, tool):
    touch(file)
    with pytest.raises(DatasetError, match=tool):
        open_cases(tmp_path)
