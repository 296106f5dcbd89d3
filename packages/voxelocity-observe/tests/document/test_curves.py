"""Curves in space."""

import base64
import io
import re

import numpy as np

from voxelocity_observe.document.curves import VIEWS, Shadow, projections, turned


def test_curves_in_space_have_whole_titles_and_what_lies_behind_them():
    curve = np.array([[0.0, 0.0, 0.0], [10.0, 20.0, 5.0]])
    shadow = Shadow(picture=np.ones((4, 5)), extent_mm=(-90.0, 90.0, -90.0, 90.0))
    columns = {"Association_InferiorFrontoOccipitalFasciculusL": [([curve], "class-1")]}
    svg = projections("tracts", columns, behind=dict.fromkeys(VIEWS, shadow))
    words = " ".join(re.findall(r">([^<>]+)</text>", svg))
    assert words.startswith("Association Inferior Fronto Occipital Fasciculus L")
    assert svg.count("data:image/png") == len(VIEWS)
    assert "data:image/png" not in projections("tracts", columns)


def test_turned_curves_are_a_picture_of_frames_in_which_a_half_turn_mirrors_them():
    from matplotlib.image import imread

    curve = np.array([[0.0, 0.0, 0.0], [40.0, 0.0, 30.0]])
    ((title, (film,)), (_, (other,))) = turned({"trained": [([curve], "class-1")], "real": [([], "class-2")]})
    assert (title, film.count, film.plane) == ("trained", 24, "turning")
    pixels = imread(io.BytesIO(base64.b64decode(film.image.partition(",")[2])))[..., :3].sum(axis=-1) > 0.2
    frames = np.split(pixels, 24, axis=1)
    assert abs(frames[0].shape[1] / frames[0].shape[0] - film.ratio) < 0.02
    right, left = (np.nonzero(frames[number])[1].mean() for number in (0, 12))
    assert abs(right + left - frames[0].shape[1]) < 3.0
    assert other.image != film.image
