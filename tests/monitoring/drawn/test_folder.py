import pytest

from voxelocity.core.errors import InputError
from voxelocity.monitoring.drawn.folder import draw_again
from voxelocity.monitoring.files import MonitorFiles


@pytest.fixture
def folder(record, tmp_path):
    made = record(5)
    files = MonitorFiles(tmp_path / "watched", pytest.fail)
    for sample in made.samples:
        files.add(sample, [])
    files.describe(made, begin_s=0.0, gpus=[], is_over=True)
    files.close()
    return tmp_path / "watched"


def test_page_and_picture_are_drawn_again_from_the_files(folder):
    assert draw_again(folder) == folder / "monitor.html"
    assert (folder / "monitor.png").read_bytes().startswith(b"\x89PNG")
    assert "mean of 2 cores" in (folder / "monitor.html").read_text()


def test_elsewhere_only_the_page_is_drawn(folder, tmp_path):
    assert draw_again(folder, tmp_path / "mine.html") == tmp_path / "mine.html"
    assert sorted(path.name for path in folder.iterdir()) == ["monitor.json", "samples.csv"]


def test_a_folder_without_a_record_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no record of a monitor"):
        draw_again(tmp_path)
