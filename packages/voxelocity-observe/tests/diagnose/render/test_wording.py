from __future__ import annotations

import dataclasses
import itertools
import re
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.diagnoses import with_facts
from voxelocity_observe.diagnose.render.wording import (
    cells,
    faster_text,
    few_steps_text,
    gain_text,
    pace,
    percent_text,
    style_for,
    title_text,
)
from voxelocity_observe.diagnose.result import Finding

FINDING = Finding(
    code="VX101", title="", cause="", evidence=(), saves_s=6.0, of_s=10.0, basis="measured", risk="safe", change=""
)


@pytest.mark.parametrize(
    ("saves_s", "words"),
    [
        (6.0, "about 2.5 times faster (measured)"),
        (9.5, "about 20 times faster (measured)"),
        (9.99, "more than 100 times faster (measured)"),
        (0.5, "about 5 % less time (measured)"),
        (0.01, "barely faster (measured)"),
        (None, "gain unknown"),
    ],
)
def test_a_gain_is_told_in_words_and_figures(saves_s, words, example_diagnosis):
    facts = example_diagnosis("data-bound").facts
    assert gain_text(dataclasses.replace(FINDING, saves_s=saves_s), facts) == words


def test_a_gain_from_few_steps_says_so(example_diagnosis):
    facts = example_diagnosis("data-bound").facts
    few = dataclasses.replace(facts, steps=facts.counted[:9])
    assert gain_text(FINDING, few) == "about 2.5 times faster (measured, from only 9 steps)"
    assert few_steps_text(dataclasses.replace(facts, steps=facts.counted[:10])) == ""
    assert few_steps_text(dataclasses.replace(facts, steps=[])) == "", "then nothing is from steps"


def test_a_factor_just_below_the_least_reads_as_time_saved():
    assert faster_text(1.09, saved_share=0.083) == "about 8 % less time"


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0 %"), (0.004, "<1 %"), (0.005, "0 %"), (0.305, "30 %"), (1, "100 %")]
)
def test_shares_read_as_whole_per_cent(share, text):
    assert percent_text(share) == text


def test_the_pace_is_of_all_watched_time(example_diagnosis):
    seen = pace(example_diagnosis("validation-bound"))
    assert seen.num_steps == 50
    assert seen.watched_s == pytest.approx(50 * 0.1 + 16.4, rel=0.02)
    assert seen.steps_per_s == pytest.approx(50 / seen.watched_s)
    assert seen.images_per_s == pytest.approx(200 / seen.watched_s)


def test_images_are_unknown_where_one_step_does_not_tell(example_diagnosis):
    diagnosis = example_diagnosis("clean")
    steps = [*diagnosis.facts.steps]
    steps[10] = dataclasses.replace(steps[10], num_images=None)
    assert pace(with_facts(diagnosis, steps=steps)).images_per_s is None
    nothing = pace(example_diagnosis("nothing seen"))
    assert (nothing.steps_per_s, nothing.step_s, nothing.watched_s) == (None, None, 0)


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (["python", "/home/a/train.py", "--lr", "1e-3"], "python train.py"),
        (["/usr/bin/python3", "-u", "-m", "pkg.train", "x"], "python3 -u -m pkg.train"),
        (["python", "-W", "ignore", "a/train.py", "x"], "python -W ignore train.py"),
        (["./run.sh"], "run.sh"),
        (["runs/first/"], "first"),
        ([], "A program"),
    ],
)
def test_a_heading_names_program_and_script(example_diagnosis, command, title):
    facts = dataclasses.replace(example_diagnosis("clean").facts, command=command)
    assert title_text(facts) == title


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.integers(1, 200))
def test_cells_sum_to_the_width_and_none_is_far_off(shares, width):
    given_cells = cells(shares, width)
    whole = sum(shares)
    assert sum(given_cells) == (width if whole > 0 else 0)
    if whole > 0 and len(shares) <= width:
        assert all((count >= 1) == (share > 0) for count, share in zip(given_cells, shares, strict=True))
        worst = max(abs(c - s / whole * width) for c, s in zip(given_cells, shares, strict=True))
        assert worst <= len(shares)


def test_every_part_has_its_own_letter_and_colors_in_steps_and_splits():
    names = ["wait", "copy", "forward", "backward", "optimizer", "validation", "saving", "epoch start", "other"]
    looks = [style_for(name) for name in names]
    for field in ("letter", "terminal", "color"):
        assert len({getattr(look, field) for look in looks}) == len(names), field
    assert style_for("wait") == style_for("waiting for data")
    assert style_for("copy") == style_for("copy to the device")
    assert style_for("zipping").letter == "Z", "a part that nobody foresaw"


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
    source = resources.files("voxelocity_observe.document").joinpath("templates/style.css").read_text(encoding="utf-8")
    block = source.split("prefers-color-scheme: dark")[scheme]
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    order = ["wait", "copy", "forward", "backward", "optimizer", "validation", "saving", "epoch start", "other"]
    shown = [seen(colors[style_for(name).color], vision) for name in order]
    assert min(np.linalg.norm(a - b) for a, b in itertools.pairwise(shown)) > 6.0
