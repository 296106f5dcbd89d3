import pytest

from voxelocity.report import folder_kind


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["run.yaml"], "run"),
        (["monitor.json"], "monitor"),
        (["diagnosis.json"], "diagnosis"),
        (["monitor.json", "run.yaml"], "run"),
        (["report.html"], None),
        ([], None),
    ],
)
def test_a_folder_is_told_by_the_file_that_only_its_command_writes(tmp_path, names, kind):
    for name in names:
        (tmp_path / name).write_text("")
    assert folder_kind(tmp_path) == kind


def test_a_folder_that_is_not_there_is_of_no_kind(tmp_path):
    assert folder_kind(tmp_path / "none") is None
