"""Curves in space."""

import re

import numpy as np

from voxelocity_observe.document.curves import VIEWS, Shadow, projections


def test_curves_in_space_have_whole_titles_and_what_lies_behind_them():
    curve = np.array([[0.0, 0.0, 0.0], [10.0, 20.0, 5.0]])
    shadow = Shadow(picture=np.ones((4, 5)), extent_mm=(-90.0, 90.0, -90.0, 90.0))
    columns = {"Association_InferiorFrontoOccipitalFasciculusL": [([curve], "class-1")]}
    svg = projections("tracts", columns, behind=dict.fromkeys(VIEWS, shadow))
    words = " ".join(re.findall(r">([^<>]+)</text>", svg))
    assert words.startswith("Association Inferior Fronto Occipital Fasciculus L")
    assert svg.count("data:image/png") == len(VIEWS)
    assert "data:image/png" not in projections("tracts", columns)
