"""The table of predictions: one row a case, whatever others append, and names that are not formulas."""

import csv

from voxelocity.infer.table import PredictionTable


def rows_in(folder):
    with (folder / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_two_commands_into_one_folder_leave_one_row_of_each_case(tmp_path):
    cases = ("a", "=b", 'c"d')
    tables = [PredictionTable(tmp_path, columns=["file"], replaced=cases) for _ in range(2)]
    for number, table in enumerate(tables):
        for case in cases:
            table.add(case, {"file": f"{number}.nii.gz"})
    for table in tables:
        table.finish()
    assert [(row["case"], row["file"]) for row in rows_in(tmp_path)] == [
        ("a", "1.nii.gz"), ("'=b", "1.nii.gz"), ('c"d', "1.nii.gz")
    ]  # fmt: skip


def test_names_like_formulas_are_replaced_as_any_others(tmp_path):
    for number in range(3):
        table = PredictionTable(tmp_path, columns=["file", "=1+1_ml"], replaced=["@x"])
        table.add("@x", {"file": f"{number}.nii.gz", "=1+1_ml": -0.5})
        table.finish()
    (row,) = rows_in(tmp_path)
    assert row == {"case": "'@x", "file": "2.nii.gz", "'=1+1_ml": "-0.5"}
