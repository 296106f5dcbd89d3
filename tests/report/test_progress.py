import numpy as np
import pytest
from matplotlib.image import imread

from voxelocity.core.errors import OutputError
from voxelocity.report import read_run, render_progress_png


def test_the_picture_shows_lines_and_replaces_the_last_one(copied_run):
    path = copied_run / "progress.png"
    path.write_bytes(b"old")
    assert render_progress_png(read_run(copied_run), path) == path
    pixels = imread(path)
    assert pixels.shape[0] > 300
    assert pixels.shape[1] > 800
    # Loss on the left in the leading color, the mean Dice on the right in ink, which no class has.
    accent, ink = (np.abs(pixels[..., :3] * 255 - color).max(axis=2) < 8 for color in ((15, 111, 106), (23, 33, 43)))
    half = pixels.shape[1] // 2
    assert accent[:, :half].sum() > 100
    assert ink[:, half:].sum() > 100
    assert not [entry for entry in copied_run.iterdir() if entry.name.endswith(".part")]


def test_the_same_facts_give_the_same_picture(finished_run, tmp_path):
    run = read_run(finished_run)
    first, second = (render_progress_png(run, tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second


def test_a_run_without_steps_and_names_full_of_formulas_can_be_drawn(write, record, events):
    record["dataset"] |= {"name": "a $b_c", "classes": ["background", "_x", "$\\frac{"]}
    for event in events:
        if event["event"] == "validation":
            event["dice"] = {"_x": 0.5, "$\\frac{": 0.6}
    folder = write(record=record)
    assert imread(render_progress_png(read_run(folder), folder / "p.png")).size
    folder = write(record=record, events=events)
    assert imread(render_progress_png(read_run(folder), folder / "p.png")).size


def test_a_path_that_cannot_be_written_is_an_output_error(finished_run):
    with pytest.raises(OutputError, match=r"cannot write '.*run\.yaml/progress\.png'"):
        render_progress_png(read_run(finished_run), finished_run / "run.yaml" / "progress.png")
