from __future__ import annotations

import base64
import io

import numpy as np
from matplotlib.image import imread

from voxelocity.report import read_run, render_progress_png
from voxelocity.report.pictures import CONFUSED, EXTRA, MISSED, class_layer, difference_layer, film, png_data_uri
from voxelocity_observe.document.charts import class_color


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


def test_a_run_without_validations_has_no_empty_axes(write, events):
    run = read_run(write(events=[event for event in events if event["event"] != "validation"]))
    pixels = imread(render_progress_png(run, run.folder / "p.png"))
    accent = np.abs(pixels[..., :3] * 255 - (15, 111, 106)).max(axis=2) < 8
    assert accent[:, 3 * pixels.shape[1] // 4 :].sum() > 50, "the loss takes the whole width"


def test_the_picture_of_a_run_that_learned_nothing_names_no_dice(write, events, tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr("matplotlib.figure.Figure.suptitle", lambda self, text, **options: titles.append(text))
    for mark in ("", "it made only 3 training steps"):
        events[-1] |= {"unlearned": mark}
        render_progress_png(read_run(write(events=events)), tmp_path / "p.png")
    assert ["best Dice" in title for title in titles] == [True, False]


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


def test_what_is_no_class_is_not_drawn():
    drawn = class_layer(np.zeros((4, 5), np.uint8))
    assert drawn.shape == (4, 5, 4)
    assert not drawn.any()


def test_a_class_is_outlined_in_its_color_and_filled_lightly():
    classes = np.zeros((40, 40), np.uint8)
    classes[10:20, 10:20] = 2
    drawn = class_layer(classes)
    assert (drawn[10:20, 10:20, :3] == class_color(2)).all()
    assert drawn[10, 15, 3] == drawn[15, 19, 3] == 255
    assert drawn[9, 15, 3] == 0
    assert 0 < drawn[15, 15, 3] < 255


def test_neighboring_classes_are_both_outlined_where_they_meet():
    classes = np.ones((40, 40), np.uint8)
    classes[:, 20:] = 3
    opacity = class_layer(classes)[..., 3]
    assert opacity[5, 19] == opacity[5, 20] == 255
    assert opacity[5, 10] < 255


def test_a_difference_tells_what_was_missed_added_and_confused():
    truth, prediction = np.array([[1, 0, 1, 2]], np.uint8), np.array([[0, 1, 2, 2]], np.uint8)
    drawn = difference_layer(truth, prediction)
    assert [tuple(pixel) for pixel in drawn[0, :3, :3]] == [MISSED, EXTRA, CONFUSED]
    assert drawn[0, 3, 3] == 0, "the same on both sides"


def test_slices_stand_side_by_side_in_their_order():
    stack = np.arange(12).reshape(3, 2, 2)
    assert film(stack).tolist() == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]]


def test_a_picture_survives_the_way_through_its_address():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4), dtype=np.uint8)
    head, data = png_data_uri(pixels).split(",")
    assert head == "data:image/png;base64"
    read = imread(io.BytesIO(base64.b64decode(data)), format="png")
    assert (np.round(read[..., 0] * 255) == pixels).all()
    assert png_data_uri(pixels) == png_data_uri(pixels.copy())
