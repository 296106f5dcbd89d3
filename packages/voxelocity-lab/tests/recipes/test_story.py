"""The demo of two minutes: its script, its page on planted figures, and once the whole of it, small."""

import ast
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from shared.diagnoses import data_bound
from shared.page import Page, assert_accessible, assert_safe
from voxelocity.core.volume import Grid, Volume
from voxelocity.report import LabeledRun, cut_slices
from voxelocity.report.records import CheckpointRecord, SliceFigure
from voxelocity_lab.bench.race.scenario import PHANTOM_KEYS
from voxelocity_lab.recipes.demo import story as story_module
from voxelocity_lab.recipes.demo.film import Film, chosen
from voxelocity_lab.recipes.demo.page import story_document
from voxelocity_lab.recipes.demo.parts import Spent, python_command, run_part, script_history, script_run, shown_command
from voxelocity_lab.recipes.demo.records import (
    CHANGED,
    FAST,
    IMPORT_AFTER,
    IMPORT_BEFORE,
    OURS,
    PLAIN,
    Story,
    StorySettings,
)
from voxelocity_lab.recipes.demo.story import run_story
from voxelocity_observe.core.errors import VoxelocityError
from voxelocity_observe.document import write_page

SCRIPT = Path(story_module.__file__).with_name("plain_script.py")
PRINTED = """\
Loading dataset: 100%
epoch   2     9.0 s  loss 1.201  Dice 0.204  2.29 s an epoch
epoch   4    14.6 s  loss 0.981  Dice 0.270  2.31 s an epoch
epoch   6    20.7 s  loss 0.731  Dice 0.468  2.20 s an epoch
"""


def side(label, history, each_s=None):
    return LabeledRun(
        label=label,
        seconds_per_epoch=each_s,
        wall_s=23.0,
        dice_history=tuple(history),
        machine={"cpu": "a CPU", "num_cpus": 2},
    )


def planted_story(out, **changes):
    out.mkdir(exist_ok=True)
    (out / "plain.py").write_text(SCRIPT.read_text())
    sides = (
        side(PLAIN, [(9.0, 0.2), (14.6, 0.27), (20.7, 0.47)], 2.29),
        side(CHANGED, [(8.3, 0.21), (10.3, 0.53), (14.4, 0.8), (21.6, 0.87)], 0.3),
        side(FAST, [(7.5, 0.21), (12.6, 0.8), (21.7, 0.88)]),
        side(OURS, [(5.1, 0.23), (6.2, 0.63), (6.9, 0.84), (8.9, 0.88)], 0.28),
    )
    story = Story(
        settings=StorySettings(),
        out=out,
        sides=sides,
        commands=("python demo/plain.py", "python demo/changed.py", "python fast.py", "voxelocity train phantoms"),
        diagnosis=data_bound(),
        film=Film(case_id="phantom_000", class_names=("background", "liver"), frames=frames(), dice=(0.1, 0.9)),
        spent=(Spent(name="phantoms", wall_s=10.0, cpu_s=19.5), Spent(name=PLAIN, wall_s=22.4, cpu_s=43.0)),
        num_cpus=2,
        load=0.1,
    )
    return replace(story, **changes)


def frames():
    image = np.random.default_rng(0).standard_normal((1, 30, 24, 16)).astype(np.float32)
    scan = Volume(case_id="c", image=image, label=None, grid=Grid.of((30, 24, 16), np.diag([2.0, 2.0, 3.0, 1.0])))
    truth = np.zeros((30, 24, 16), np.uint8)
    truth[8:20, 6:18, 4:12] = 1
    found = []
    for size in (3, 10):
        predicted = np.zeros_like(truth)
        predicted[8 : 8 + size, 6:18, 4:12] = 1
        stacks = cut_slices(scan, predicted, truth=truth, through=truth > 0, num_slices=1)
        found.append(SliceFigure(title=f"after {size} s", stacks=stacks))
    return tuple(found)


def test_predictions_of_a_film_are_cut_alike():
    early, late = frames()
    for before, after in zip(early.stacks, late.stacks, strict=True):
        assert np.array_equal(before.image, after.image)
        assert before.image.shape[0] == 1


def page_of(story, tmp_path):
    return Page(write_page(story_document(story), tmp_path / "demo.html").read_text())


def test_the_page_tells_the_story_in_order_and_names_its_base(tmp_path):
    page = page_of(planted_story(tmp_path), tmp_path)
    assert_safe(page)
    assert_accessible(page)
    titles = (
        "typical MONAI script",
        "Its bottleneck",
        "One import line changed",
        "one command",
        "as they improved",
        "own data",
    )
    places = [page.text.rindex(title) for title in titles]
    assert places == sorted(places)
    assert "0.30 s instead of 2.3 s" in page.text.replace("\u00a0", " ")
    assert "n = 1" in page.text
    assert "It has twice the time of a script" in page.text
    assert "SEEDS=5" in page.text
    assert "worse" not in {name for attrs in page.all("dd", "td") for name in (attrs.get("class") or "").split()}
    assert IMPORT_BEFORE in page.text
    assert IMPORT_AFTER in page.text


def test_the_verdict_says_when_ours_passed_what_the_plain_script_ended_with(tmp_path):
    verdict = story_document(planted_story(tmp_path)).verdict
    assert "0.470" in verdict
    assert "6.2 s" in verdict
    assert "0.880" in verdict


def test_a_slow_or_busy_machine_is_named_and_no_figure_is_made_up(tmp_path):
    slow = planted_story(tmp_path, load=5.0)
    slow = replace(slow, sides=(side(PLAIN, []), *slow.sides[1:]))
    document = story_document(slow)
    notices = " ".join(document.notices)
    assert PLAIN in notices
    assert "--seconds 80" in notices
    assert "load average 5.0 on 2 cores" in notices
    assert document.cards[0].value == "no Dice yet"
    assert page_of(slow, tmp_path).text.count("not in 23") >= 1


def test_the_script_is_monais_alone_and_changes_in_one_import_line():
    text = SCRIPT.read_text()
    imported = {node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("voxelocity") for name in imported)
    assert text.count(IMPORT_BEFORE) == 1
    ast.parse(text.replace(IMPORT_BEFORE, IMPORT_AFTER))


def test_the_script_trains_what_the_plan_says():
    text, keys = SCRIPT.read_text(), PHANTOM_KEYS
    assert f"PATCH = {tuple(keys['data.patch.shape_voxel'])}" in text
    assert f"channels={tuple(keys['network.widths'])}" in text
    assert f"pixdim={tuple(keys['data.prepare.spacing_mm'])}" in text
    augment = keys["data.augment"]
    assert f"prob={augment['affine_probability']}, rotate_range=(0.26,) * 3" in text
    assert f"prob={augment['gamma_probability']}, gamma={tuple(augment['gamma_range'])}" in text


def test_what_a_script_printed_is_read_also_while_it_runs(tmp_path):
    log = tmp_path / "plain.log"
    assert script_history(log) == []
    log.write_text(PRINTED + "epoch   8    26.")
    assert script_history(log) == [(9.0, 0.204), (14.6, 0.27), (20.7, 0.468)]
    run = script_run(PLAIN, log, wall_s=24.0, target_dice=0.25)
    assert run.seconds_per_epoch == 2.29
    assert run.seconds_to_target == 14.6


def test_a_part_is_followed_and_its_failure_has_its_last_lines(tmp_path):
    seen, log = [], tmp_path / "part.log"
    program = f"print({PRINTED!r})"
    run_part(
        python_command("-c", program), log, history=lambda: script_history(log), on_validation=lambda *v: seen.append(v)
    )
    assert [dice for _, dice in seen] == [0.204, 0.27, 0.468]
    with pytest.raises(VoxelocityError, match=r"status 1[\s\S]*no such scan"):
        run_part(python_command("-c", "raise SystemExit('no such scan')"), log)


def test_commands_are_shown_as_a_reader_types_them():
    watched = python_command("plain.py", "data")
    assert shown_command(watched) == "python plain.py data"
    assert shown_command(python_command("-m", "voxelocity", "diagnose", "--", *watched)) == (
        "voxelocity diagnose -- python plain.py data"
    )


def test_frames_are_spread_over_the_checkpoints_that_are_left(tmp_path):
    records = [CheckpointRecord(time_s=n, step=n, path=f"{n}.pt", seconds=0.1) for n in range(20)]
    for record in records[2:]:
        (tmp_path / record.path).touch()
    picked = [record.step for record in chosen(records, tmp_path)]
    assert (picked[0], picked[-1], len(picked)) == (2, 19, 6)
    assert chosen([], tmp_path) == []


@pytest.mark.slow
@pytest.mark.nightly
def test_the_whole_story_on_small_phantoms(tmp_path):
    text = io.StringIO()
    settings = StorySettings(side_s=20.0, target_dice=0.05, num_cases=8, scale=0.25)
    run_story(tmp_path / "demo", settings, console=Console(file=text, width=80))
    record = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert set(record["spent"]) == {
        "phantoms",
        PLAIN,
        "diagnose",
        CHANGED,
        "the fast recipe's settings",
        FAST,
        OURS,
        "pictures",
    }
    assert not (tmp_path / "demo" / "ours").exists()
    sides = text.getvalue().split("\u2500\u2500 ")
    assert max(part.count("\n") for part in sides) <= 12
