from __future__ import annotations

from voxelocity.report import found_document


def test_long_lists_are_cut_and_counted_and_nothing_is_lost_without_a_word():
    cases = [(f"c{index:02d}", (f"i{index}.nii", f"j{index}.nii"), "" if index else "l.nii") for index in range(12)]
    labels = {value: f"class {value}" for value in range(15)}
    document = found_document(("t1", "t2"), labels, cases, [("x.nii", "no image has this name")], ["Check the names."])
    assert document.verdict == "12 cases, 1 with a label; t1, t2"
    assert document.notices == ["Check the names."]
    shown, classes, left_out = (section.blocks[0] for section in document.sections)
    assert shown.heads == ["case", "t1", "t2", "label"]
    assert shown.rows[0] == ["c00", "i0.nii", "j0.nii", "l.nii"]
    assert shown.rows[1][-1] == "none"
    assert (len(shown.rows), shown.rows[-1][0]) == (11, "and 2 more")
    assert len(classes.rows) == 15
    assert left_out.rows == [["x.nii", "no image has this name"]]
    assert len(found_document(("CT",), labels, cases, [], []).sections) == 2
