import re
from dataclasses import replace

import pytest

from shared.page import Page, assert_accessible, assert_golden, assert_safe
from voxelocity.core.records import CaseScore
from voxelocity.report import LabeledRun, comparison, comparison_document, label_run, median_run, read_run
from voxelocity.report.comparison import comparison_verdict, with_command
from voxelocity.report.parity import paired_parity
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.time_parts import TimeShare
from voxelocity_observe.document import write_page
from voxelocity_observe.document.blocks import Pair, Section, Table, Text

PLAIN = LabeledRun(
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
OURS = LabeledRun(
    label="Voxelocity",
    seconds_to_target=50.0,
    images_per_s=180.0,
    wall_s=65.0,
    wait_share=0.013,
    dice_history=((25.0, 0.72), (50.0, 0.864)),
    settings={"num_workers": 0, "spacing_mm": (3, 3, 3)},
    machine={"cpu": "EPYC", "num_cpus": 2},
)


def page_of(runs, path, title, command="make it", **options):
    return write_page(with_command(comparison_document(runs, title, **options), command), path)


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
    never = LabeledRun(label="Plain", wall_s=600.0)
    assert comparison_verdict([never, OURS], target_dice=0.85) == (
        "Voxelocity reached Dice 0.85 in 50 s, Plain did not in 10 min: more than 12 times faster."
    )
    slow = LabeledRun(label="Slow", seconds_to_target=700.0)
    assert comparison_verdict([never, slow]) == "Slow reached the target in 12 min, Plain did not in 10 min.".replace(
        "12 min", "11 min 40 s"
    )
    assert comparison_verdict([slow, never]) == "Plain did not reach the target, Slow did in 11 min 40 s."


def test_without_a_target_the_verdict_takes_the_rate():
    a, b = LabeledRun(label="A", images_per_s=40.0), LabeledRun(label="B", images_per_s=180.0)
    assert comparison_verdict([a, b]) == "B trained on 180 images per second, A on 40.0: 4.5 times faster."
    like = replace(b, images_per_s=41.0)
    assert comparison_verdict([a, like]) == "B trained on 41.0 images per second, A on 40.0: about as fast."


def test_text_from_runs_is_escaped(tmp_path):
    evil = "<script>alert(1)</script>"
    run = LabeledRun(label=evil, wall_s=1.0, settings={evil: evil}, machine={"cpu": evil}, notes=(evil,))
    path = page_of([PLAIN, run], tmp_path / "c.html", evil, summary=evil, command=evil)
    assert "<script" not in path.read_text()
    assert path.read_text().count("&lt;script&gt;") > 8


def test_three_runs_have_lines_of_their_own(tmp_path):
    third = LabeledRun(label="Third", dice_history=((30.0, 0.5), (80.0, 0.86)), seconds_to_target=80.0)
    text = page_of([PLAIN, third, OURS], tmp_path / "c.html", "t", target_dice=0.85).read_text()
    svg = text[text.index("<svg") : text.index("</svg>")]
    assert all(f"var(--{color})" in svg for color in ("baseline", "class-1", "accent"))


@pytest.mark.parametrize(("num_runs", "is_pair"), [(2, True), (3, False)])
def test_the_times_of_three_runs_have_the_whole_width(num_runs, is_pair):
    stages = (TimeShare(name="forward", seconds=1.0, share=1.0),)
    runs = [replace(OURS, label=str(number), stages=stages, step_parts=stages) for number in range(num_runs)]
    sections = {section.title: section.blocks for section in comparison_document(runs, "t").sections}
    assert isinstance(sections["Where the time went"][0], Pair) == is_pair


def test_several_trainings_a_side_have_a_curve_of_how_many_had_reached_the_target(tmp_path):
    peer = median_run([LabeledRun(label="peer", seconds_to_target=seconds) for seconds in (60.0, 80.0, 70.0)])
    ours = median_run([LabeledRun(label="ours", seconds_to_target=seconds) for seconds in (30.0, None, 40.0)])
    page = page_of([peer, ours], tmp_path / "page.html", "Seeds", target_dice=0.8).read_text()
    assert "share of trainings that had reached the target by then. peer 3 of 3; ours 2 of 3." in page
    alone = page_of([replace(peer, each_to_target=()), ours], tmp_path / "alone.html", "Seeds").read_text()
    assert "reached the target by then. ours 2 of 3." in alone
    single = [LabeledRun(label=label, seconds_to_target=1.0, each_to_target=(1.0,)) for label in ("a", "b")]
    assert "had reached the target" not in page_of(single, tmp_path / "single.html", "One").read_text()


@pytest.mark.parametrize(
    ("times_s", "points"),
    [
        ((2.0, 1.0), [(0.0, 0.0), (1.0, 0.0), (1.0, 0.5), (2.0, 0.5), (2.0, 1.0), (9.0, 1.0)]),
        ((None, 4.0), [(0.0, 0.0), (4.0, 0.0), (4.0, 0.5), (9.0, 0.5)]),
        ((None, None), [(0.0, 0.0), (9.0, 0.0)]),
    ],
)
def test_a_share_steps_up_at_each_training_that_reached_the_target(times_s, points):
    assert list(comparison._stairs(times_s, 9.0)) == points


def test_runs_that_know_nothing_can_be_drawn(tmp_path):
    text = words(page_of([LabeledRun(label="A"), LabeledRun(label="B")], tmp_path / "c.html", "t"))
    assert "No settings were recorded." in text
    assert "B and A have 0 measures in common." in text


def test_one_run_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="comparing takes two runs or more"):
        page_of([PLAIN], tmp_path / "c.html", "t")
    assert not list(tmp_path.iterdir())


def splits(*seconds):
    names = ("start", "training steps", "final validation")
    return tuple(
        TimeShare(name=name, seconds=part_s, share=part_s / sum(seconds))
        for name, part_s in zip(names, seconds, strict=True)
    )


def scored(*dice):
    return [CaseScore(case_id=f"case_{i}", dice={"liver": value}) for i, value in enumerate(dice)]


def test_accuracy_that_was_paired_takes_the_place_of_both_final_values():
    parity = paired_parity(scored(0.8, 0.9, 0.7), scored(0.801, 0.9, 0.699))
    text = comparison_verdict([PLAIN, OURS], target_dice=0.85, parity=parity)
    assert "Accuracy: the same within 0.01 mean foreground Dice" in text
    assert "Final Dice" not in text


def test_the_page_reads_as_agreed(tmp_path):
    table = Table(caption="By round", heads=("Round", "images/s"), rows=[("1", "18.2")])
    path = page_of(
        [replace(PLAIN, stages=splits(2.0, 240.0, 18.0)), replace(OURS, stages=splits(2.0, 50.0, 13.0))],
        tmp_path / "c.html",
        "Plain against fast",
        target_dice=0.85,
        target_reason="the target of both runs",
        parity=paired_parity(scored(0.8, 0.9, 0.7), scored(0.801, 0.9, 0.699)),
        notices=("Mind the gap.",),
        sections=(Section(title="Speed", blocks=[Text(text="Three rounds."), table]),),
        summary="Same net.",
    )
    text = path.read_text(encoding="utf-8")
    assert_golden(Page(text), "run-comparison")
    svg = re.search(r"<svg.*?</svg>", text, re.DOTALL)
    assert svg is not None
    assert all(f"var(--{color})" in svg[0] for color in ("baseline", "accent", "chart-target"))


def test_reasons_stand_beside_settings_only_where_somebody_gave_them(tmp_path):
    assert "Why" not in words(page_of([PLAIN, OURS], tmp_path / "c.html", "t"))
    with_reason = replace(OURS, reasons={"num_workers": "threads do the work"})
    assert "Voxelocity: threads do the work" in words(page_of([PLAIN, with_reason], tmp_path / "c.html", "t"))


@pytest.fixture(scope="module")
def page_of_runs(finished_run, tmp_path_factory):
    """The page of two runs of the made-up data set, the second quicker and set up otherwise."""
    facts = read_run(finished_run)
    first, second = label_run(facts, "float32"), label_run(facts, "bfloat16")
    second = replace(second, wall_s=240.0, settings={**second.settings, "precision.compute": "bfloat16"})
    quicker = tuple(replace(part, seconds=0.8 * part.seconds) for part in second.stages)
    folder = tmp_path_factory.mktemp("comparison")
    return page_of(
        [first, replace(second, stages=quicker)],
        folder / "c.html",
        "Two runs",
        target_dice=0.85,
        parity=paired_parity(facts.scores, facts.scores),
    )


def test_the_comparison_is_one_file_that_can_be_used_by_keyboard_and_read_aloud(page_of_runs):
    page = Page(page_of_runs.read_text(encoding="utf-8"))
    assert_safe(page)
    assert_accessible(page)
    bars = [attrs for attrs in page.all("svg") if attrs.get("class") == "bar"]
    assert [attrs["role"] for attrs in bars] == ["img"] * 4, "two of stages, two of steps"


def test_bars_of_two_runs_have_one_scale_and_one_color_for_a_name(page_of_runs):
    text = page_of_runs.read_text(encoding="utf-8")
    first, second = (
        re.findall(r'style="fill: ([^"]+)" x="[^"]*" y="0" width="([\d.]+)%"', bar)
        for bar in re.findall(r'<svg class="bar".*?</svg>', text, re.DOTALL)[:2]
    )
    assert [style for style, _ in first] == [style for style, _ in second]
    assert sum(float(width) for _, width in first) == pytest.approx(100.0, abs=0.1)
    assert sum(float(width) for _, width in second) == pytest.approx(80.0, abs=0.1)
