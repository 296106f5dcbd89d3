import itertools
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxelocity.diagnosis.render.part_styles import cells, style_for


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.integers(1, 200))
def test_cells_sum_to_the_width_and_none_is_far_off(shares, width):
    given_cells = cells(shares, width)
    whole = sum(shares)
    assert sum(given_cells) == (width if whole > 0 else 0)
    if whole > 0 and len(shares) <= width:
        assert all((count >= 1) == (share > 0) for count, share in zip(given_cells, shares, strict=True))
        worst = max(abs(c - s / whole * width) for c, s in zip(given_cells, shares, strict=True))
        assert worst <= len(shares)


def test_parts_of_steps_and_of_splits_look_alike():
    assert style_for("wait") == style_for("waiting for data")
    assert style_for("copy") == style_for("copy to the device") != style_for("other")


def test_every_known_part_has_its_own_letter_and_colors():
    names = ["wait", "copy", "forward", "backward", "optimizer", "validation", "saving", "epoch start", "other"]
    looks = [style_for(name) for name in names]
    for field in ("letter", "terminal", "color"):
        assert len({getattr(look, field) for look in looks}) == len(names), field


def test_a_part_that_nobody_foresaw_has_a_look():
    assert style_for("zipping").letter == "Z"


# Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency", 2009.
VISIONS = {
    "usual": np.eye(3),
    "without red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "without green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "without blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def seen(color, vision):
    """CIELAB of a color as someone with this vision sees it; a distance of 2 is just noticed side by side."""
    rgb = np.array([int(color[i : i + 2], 16) / 255.0 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    linear = np.clip(np.array(VISIONS[vision]) @ linear, 0.0, 1.0)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
    x, y, z = (np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz / (0.9505, 1.0, 1.089))
    return np.array([116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", [0, 1])
def test_parts_that_lie_side_by_side_are_told_apart_by_any_eye(vision, scheme):
    source = resources.files("voxelocity.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    block = source.split("prefers-color-scheme: dark")[scheme]
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    order = ["wait", "copy", "forward", "backward", "optimizer", "validation", "saving", "epoch start", "other"]
    shown = [seen(colors[style_for(name).color], vision) for name in order]
    assert min(np.linalg.norm(a - b) for a, b in itertools.pairwise(shown)) > 6.0
