"""The table of predictions: one row a case, whatever others append, and names that are not formulas."""

import csv

from voxelocity.infer.table import PredictionTable


def rows_in(folder):
    with (folder / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_two_commands_into_one_folder_leave_one_row_of_each_case(tmp_path):
    cases = ("a", "=b", 'c"d')
    tables = [PredictionTable(tmp_path, columns=["file"]) for _ in range(2)]
    for number, table in enumerate(tables):
        for case in cases:
            table.add(case, {"file": f"{number}.nii.gz"})
    for table in tables:
        table.finish()
    assert [(row["case"], row["file"]) for row in rows_in(tmp_path)] == [
        ("a", "1.nii.gz"), ("'=b", "1.nii.gz"), ('c"d', "1.nii.gz")
    ]  # fmt: skip


def test_a_command_of_another_model_in_the_same_folder_mixes_no_columns(tmp_path):
    first = PredictionTable(tmp_path, columns=["liver_ml", "spleen_ml"])
    first.add("a", {"liver_ml": 1, "spleen_ml": 2})
    other = PredictionTable(tmp_path, columns=["spleen_ml", "liver_ml", "tumor_ml"])
    first.add("b", {"liver_ml": 3, "spleen_ml": 4})
    other.add("c", {"spleen_ml": 6, "liver_ml": 5, "tumor_ml": 7})
    found = {row["case"]: (row["liver_ml"], row["spleen_ml"], row["tumor_ml"]) for row in rows_in(tmp_path)}
    assert found == {"a": ("1", "2", ""), "b": ("3", "4", ""), "c": ("5", "6", "7")}
    (tmp_path / "predictions.csv").unlink()
    first.add("a", {"liver_ml": 1, "spleen_ml": 2})
    for table in (first, other):
        table.finish()
    (row,) = rows_in(tmp_path)
    assert (row["case"], row["liver_ml"], row["spleen_ml"]) == ("a", "1", "2")


def test_a_row_stays_until_its_case_has_a_new_one(tmp_path):
    for number in range(2):
        table = PredictionTable(tmp_path, columns=["file", "division"])
        for case in ("a", "b")[: 2 - number]:
            table.add(case, {"file": f"{case}{number}.nii.gz", "division": "trained on"})
        # The second command ends after one case.
        table.finish()
    assert {row["case"]: row["file"] for row in rows_in(tmp_path)} == {"a": "a1.nii.gz", "b": "b0.nii.gz"}


def test_names_like_formulas_are_replaced_as_any_others(tmp_path):
    for number in range(3):
        table = PredictionTable(tmp_path, columns=["file", "=1+1_ml"])
        table.add("@x", {"file": f"{number}.nii.gz", "=1+1_ml": -0.5})
        table.finish()
    (row,) = rows_in(tmp_path)
    assert row == {"case": "'@x", "file": "2.nii.gz", "'=1+1_ml": "-0.5"}
