from __future__ import annotations

from pathlib import Path

import pytest

from voxelocity.data.source import open_cases
from voxelocity_observe.core.errors import DatasetError


@pytest.fixture
def table(tmp_path, touch):
    """Writes a table beside the files of the cases a, b and c."""
    for case in "abc":
        touch(f"{case}.nii.gz", f"{case}_seg.nii.gz", f"{case}_t2.nii.gz")

    def write(text: str, name: str = "cases.csv") -> Path:
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    return write


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_delimiters_and_line_ends_of_every_office_are_read(table, delimiter, line_end):
    rows = ["image,label", "b.nii.gz,b_seg.nii.gz", "", "a.nii.gz,a_seg.nii.gz", ""]
    path = table(line_end.join(rows).replace(",", delimiter))
    cases = open_cases(path)
    assert (cases.layout, cases.name, cases.root, cases.channels) == ("csv", "cases", path, ("image",))
    assert cases.labels == {}
    assert [(ref.case_id, ref.fold) for ref in cases] == [("a", 0), ("b", 1)]
    assert cases.refs[0].images == (path.parent / "a.nii.gz",)
    assert cases.refs[0].label == path.parent / "a_seg.nii.gz"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_quoted_cells_may_hold_delimiters(table, touch, delimiter):
    touch("x,y;z.nii.gz")
    path = table(f'\n"image"{delimiter}"note"\n"x,y;z.nii.gz"{delimiter}"two\nlines"\n')
    assert [ref.case_id for ref in open_cases(path)] == ["x,y;z"]


def test_a_byte_order_mark_capitals_and_further_columns_are_no_obstacle(table):
    path = table("\ufeffSite, Image ,LABEL\nLyon,a.nii.gz,\n")
    (ref,) = open_cases(path).refs
    assert (ref.case_id, ref.label, ref.fold) == ("a", None, None)


def test_numbered_image_columns_are_channels_in_order(table):
    path = table("image_1,case,image_0\na_t2.nii.gz,patient 7,a.nii.gz\n")
    cases = open_cases(path)
    assert cases.channels == ("image_0", "image_1")
    assert cases.refs[0].case_id == "patient 7"
    assert [image.name for image in cases.refs[0].images] == ["a.nii.gz", "a_t2.nii.gz"]


def test_one_volume_of_an_image_is_named_by_a_column(table):
    cases = open_cases(table("image,label,image_volume\na.nii.gz,a_seg.nii.gz,3\nb.nii.gz,b_seg.nii.gz,\n"))
    assert [ref.volume for ref in cases] == [3, None]
    for text in ("0", "2.5", "x"):
        with pytest.raises(DatasetError, match=rf"line 2 has the image_volume .{text}.; write a whole number from 1"):
            open_cases(table(f"image,label,image_volume\na.nii.gz,a_seg.nii.gz,{text}\n"))


def test_declared_folds_are_honored_and_an_empty_one_is_never_held_out(table):
    rows = ("a.nii.gz,a_seg.nii.gz,2", "b.nii.gz,b_seg.nii.gz,", "c.nii.gz,c_seg.nii.gz,0")
    cases = open_cases(table("image,label,fold\n" + "\n".join(rows)))
    assert ([ref.fold for ref in cases], cases.num_folds) == ([2, None, 0], 3)
    assert [ref.case_id for ref in cases.split(0).training] == ["a", "b"]


def test_default_folds_count_labeled_cases_alone(table):
    rows = ("a.nii.gz,a_seg.nii.gz", "b.nii.gz,", "c.nii.gz,c_seg.nii.gz")
    cases = open_cases(table("image,label\n" + "\n".join(rows)))
    assert ([ref.fold for ref in cases], cases.num_folds) == ([0, None, 1], 2)


def test_a_table_of_unlabeled_cases_opens(table):
    cases = open_cases(table("image\na.nii.gz\nb.nii.gz\n"))
    assert [(ref.label, ref.fold) for ref in cases] == [(None, None)] * 2


def test_paths_may_be_absolute_or_lead_out_of_the_folder(tmp_path, table, touch):
    (tmp_path / "lists").mkdir()
    path = table(f"image,label\n../a.nii.gz,{tmp_path / 'a_seg.nii.gz'}\n", "lists/cases.tsv")
    (ref,) = open_cases(path).refs
    assert ref.images[0].resolve() == tmp_path / "a.nii.gz"
    assert ref.label == tmp_path / "a_seg.nii.gz"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"the table is empty; write a header with the column 'image'"),
        ("image,label\n", r"the table has a header and no rows; add one row per case"),
        ("file;mask;x\na;b;c\n", r"no column 'image' among the columns 'file', 'mask', 'x'; name the column"),
        ("scan\na.nii.gz\n", r"no column 'image' among the columns 'scan'; name the column"),
        ("image,image\na,b\n", r"the column 'image' appears twice in the header; remove or rename one"),
        ("image,case,case\na,b,c\n", r"the column 'case' appears twice in the header"),
        ("image_0,image_2\na,b\n", r"the image columns are 'image_0', 'image_2'; name them 'image_0', 'image_1'"),
        ("image,image_0\na,b\n", r"the image columns are 'image', 'image_0'; name them"),
        ("image,labels\na,b\n", r"the column 'labels' is not known; did you mean 'label'\? If not, rename it"),
        ("image,folds\na,1\n", r"the column 'folds' is not known; did you mean 'fold'\?"),
        ("image,case_id\na,1\n", r"the column 'case_id' is not known; did you mean 'case'\?"),
        ("image,label\na.nii.gz\n", r"line 2 has 1 cells, the header has 2; add or remove cells, or put"),
        ("\nimage,label\n\na.nii.gz,b,c\n", r"line 4 has 3 cells, the header has 2"),
        ("image,label\n,a_seg.nii.gz\n", r"line 2 has an empty 'image'; write the path of the image or remove"),
        ("image,case\na.nii.gz,\n", r"line 2 has an empty 'case'; name the case, or leave the whole column out"),
        ("image,fold\na.nii.gz,one\n", r"line 2 has the fold 'one'; write a whole number from 0, or leave it empty"),
        ("image,fold\na.nii.gz,-1\n", r"line 2 has the fold '-1'; write a whole number from 0"),
        ("image,fold\na.nii.gz,1.0\n", r"line 2 has the fold '1\.0'; write a whole number from 0"),
        ('image,note\na.nii.gz,"open\n', r"line 2 is not readable \(.*\); check the quotation marks from there on"),
        ('"image"x\na.nii.gz\n', r"the header is not readable; check its quotation marks and delimiters"),
        ("image,case\na.nii.gz,../a\n", r"case id '\.\./a' cannot be part of a file name; rename it"),
        ("image,case\na.nii.gz,x\nb.nii.gz,x\n", r"two cases are called 'x' \(.*a\.nii\.gz and .*b\.nii\.gz\); rename"),
        ("image,label\na.nii.gz,nope.nii.gz\n", r"1 of 2 files are missing, the first is .*/nope\.nii\.gz; complete"),
    ],
)
def test_malformed_tables_are_refused(table, text, problem):
    path = table(text)
    with pytest.raises(DatasetError, match=problem) as caught:
        open_cases(path)
    assert str(caught.value).startswith(f"source: {path}: ")
    assert "\n" not in str(caught.value)


def test_another_encoding_is_refused(tmp_path):
    (tmp_path / "cases.csv").write_bytes("image\n".encode("utf-16"))
    with pytest.raises(DatasetError, match=r"cases\.csv: byte 0 is not UTF-8; save the table as CSV in UTF-8"):
        open_cases(tmp_path)


def test_a_patient_column_says_whose_scans_stay_in_one_fold(table):
    rows = ("a.nii.gz,a_seg.nii.gz,Meyer", "b.nii.gz,b_seg.nii.gz,", "c.nii.gz,c_seg.nii.gz,Meyer")
    cases = open_cases(table("image,label,patient\n" + "\n".join(rows)))
    assert [(ref.patient, ref.fold) for ref in cases] == [("Meyer", 0), ("b", 1), ("Meyer", 0)]
    assert (cases.num_patients, cases.num_folds, cases.split(0).num_shared_patients) == (2, 2, 0)


def test_declared_folds_that_part_a_patient_are_counted(table):
    rows = ("a.nii.gz,a_seg.nii.gz,Meyer,0", "b.nii.gz,b_seg.nii.gz,Meyer,1", "c.nii.gz,c_seg.nii.gz,Roth,1")
    cases = open_cases(table("image,label,patient,fold\n" + "\n".join(rows)))
    assert cases.split(0).num_shared_patients == 1
