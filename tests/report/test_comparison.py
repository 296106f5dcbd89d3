import re

import pytest

from voxelocity.core.errors import InputError
from voxelocity.report import LabelledRun, comparison_verdict, render_comparison

PLAIN = LabelledRun(
    label="Plain MONAI",
    seconds_to_target=240.0,
    images_per_s=40.0,
    wall_s=260.0,
    wait_share=0.62,
    dice_history=((120.0, 0.7), (240.0, 0.86)),
    settings={"num_workers": 2, "spacing_mm": [3, 3, 3]},
    machine={"cpu": "EPYC", "num_cpus": 2},
    notes=("Every epoch from the files.",),
)
OURS = LabelledRun(
    label="Voxelocity",
    seconds_to_target=50.0,
    images_per_s=180.0,
    wall_s=65.0,
    wait_share=0.013,
    dice_history=((25.0, 0.72), (50.0, 0.864)),
    settings={"num_workers": 0, "spacing_mm": (3, 3, 3)},
    machine={"cpu": "EPYC", "num_cpus": 2},
)


def words(path):
    text = re.sub(r"<style>.*?</style>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", text).replace("\u00a0", " ").split())


def test_the_verdict_names_both_times_the_factor_and_the_accuracy():
    assert comparison_verdict([PLAIN, OURS], target_dice=0.85) == (
        "Voxelocity reached Dice 0.85 in 50 s, Plain MONAI in 4 min: 4.8 times faster. "
        "Final Dice 0.864 against 0.860 (+0.004)."
    )


def test_the_verdict_does_not_call_a_slower_run_faster():
    text = comparison_verdict([OURS, PLAIN], target_dice=0.85)
    assert "Plain MONAI reached Dice 0.85 in 4 min, Voxelocity in 50 s: 4.8 times slower." in text


def test_the_verdict_of_a_run_that_never_got_there_is_a_bound():
    never = LabelledRun(label="Plain", wall_s=600.0)
    assert comparison_verdict([never, OURS], target_dice=0.85) == (
        "Voxelocity reached Dice 0.85 in 50 s, Plain did not in 10 min: more than 12 times faster."
    )
    slow = LabelledRun(label="Slow", seconds_to_target=700.0)
    assert comparison_verdict([never, slow]) == "Slow reached the target in 12 min, Plain did not in 10 min.".replace(
        "12 min", "11 min 40 s"
    )
    assert comparison_verdict([slow, never]) == "Plain did not reach the target, Slow did in 11 min 40 s."


def test_without_a_target_the_verdict_takes_the_rate():
    a, b = LabelledRun(label="A", images_per_s=40.0), LabelledRun(label="B", images_per_s=180.0)
    assert comparison_verdict([a, b]) == "B trained on 180 images per second, A on 40.0: 4.5 times faster."


def test_the_page_shows_factors_curves_and_what_was_set_differently(tmp_path):
    path = render_comparison(
        [PLAIN, OURS],
        tmp_path / "c.html",
        "Plain against fast",
        target_dice=0.85,
        summary="Same net.",
        command="make it",
    )
    text = words(path)
    for phrase in (
        "Time to Dice 0.85 4 min 50 s 4.8×",
        "Waiting for data 62.0 % 1.3 %",
        "num_workers 2 0",
        "1 more setting is equal.",
        "Every epoch from the files.",
        "Same net.",
        "target 0.850",
        "make it",
    ):
        assert phrase in text
    svg = re.search(r"<svg.*?</svg>", path.read_text(), re.DOTALL)
    assert svg is not None
    assert all(f"var(--{colour})" in svg[0] for colour in ("baseline", "accent", "chart-target"))
    assert "different machines" not in text
    assert text.count("EPYC") == 1


def test_different_machines_are_pointed_out(tmp_path):
    other = LabelledRun(label="Other", wall_s=1.0, machine={"cpu": "Xeon", "num_cpus": 2})
    text = words(render_comparison([PLAIN, other], tmp_path / "c.html", "t"))
    assert "The runs were made on different machines (cpu: EPYC, Xeon)" in text
    assert text.count("EPYC") == 2


def test_text_from_runs_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    run = LabelledRun(label=evil, wall_s=1.0, settings={evil: evil}, machine={"cpu": evil}, notes=(evil,))
    path = render_comparison([PLAIN, run], tmp_path / "c.html", evil, summary=evil, command=evil)
    assert "<script" not in path.read_text()
    assert path.read_text().count("&lt;script&gt;") > 8


def test_three_runs_have_lines_of_their_own(tmp_path):
    third = LabelledRun(label="Third", dice_history=((30.0, 0.5), (80.0, 0.86)), seconds_to_target=80.0)
    text = render_comparison([PLAIN, third, OURS], tmp_path / "c.html", "t", target_dice=0.85).read_text()
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert all(f"var(--{colour})" in svg for colour in ("baseline", "class-1", "accent"))


def test_runs_that_know_nothing_can_be_drawn(tmp_path):
    text = words(render_comparison([LabelledRun(label="A"), LabelledRun(label="B")], tmp_path / "c.html", "t"))
    assert "The runs came without settings." in text
    assert "B and A have 0 measures in common." in text


def test_one_run_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="comparing takes two runs or more"):
        render_comparison([PLAIN], tmp_path / "c.html", "t")
    assert not list(tmp_path.iterdir())
