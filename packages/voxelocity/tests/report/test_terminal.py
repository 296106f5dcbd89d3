import io
from collections import Counter

import pytest
from rich.cells import cell_len
from rich.console import Console

from shared.examples import is_thorough
from voxelocity.core.records import CaseScore, Choice, Measured
from voxelocity.report import (
    LabeledRun,
    comparison_document,
    dataset_panel,
    factor_table,
    plan_summary,
    plan_table,
    score_table,
    volume_table,
)
from voxelocity.report.parity import paired_parity
from voxelocity_observe.document import TableView, document_view
from voxelocity_observe.document.blocks import Table

CHOICES = [
    Choice(
        key="data.patch.shape_voxel",
        value=[40, 56, 40],
        reason="the median case fits in whole, rounded up to a multiple of eight voxels on each axis",
    ),
    Choice(key="data.cache.tier", value="[red]memory[/red]", reason="61 MiB of 102 GiB", changes_results=False),
    Choice(
        key="precision.channels_last",
        value=True,
        reason="measured here: a step takes 0.71 times as long",
        changes_results=False,
        changes_roundings=True,
        measured=Measured(what="a against b", ratio=0.71, low=0.69, high=0.74, rounds=5, decided=True),
    ),
]
SCORES = [
    CaseScore(case_id=f"case_{i} [bold]", dice={"liver": 0.9 - i / 100, "[tumour]": 0.5}, hd95_mm={"liver": 2.0})
    for i in range(8)
]
RUNS = [
    LabeledRun(label="Plain [x]", seconds_to_target=240.0, wall_s=250.0, images_per_s=40.0),
    LabeledRun(label="Ours", seconds_to_target=50.0, wall_s=60.0, images_per_s=180.0),
]

PAIR = comparison_document(
    RUNS,
    "Plain and ours",
    target_dice=0.85,
    target_reason="asked for",
    parity=paired_parity(SCORES, SCORES[:6]),
    notices=("Plain [x] has not finished.",),
)


@pytest.fixture
def planned_record(record):
    """The record of a run, with a whole plan."""
    plan = {
        "data": {"patch": {"shape_voxel": [40, 56, 40]}, "prepare": {"spacing_mm": [1.0, 1.0, 1.5]}, "batch_size": 9},
        "network": {"name": "dynunet", "widths": [24, 48, 96]},
        "optimizer": {"name": "muon", "learning_rate": 0.008},
        "precision": {"compute": "bfloat16", "compile": "default", "step_graph": True},
        "train": {"time_budget_s": 600.0, "target_dice": 0.0, "steps": 0},
    }
    plan["data"]["cache"] = {"tier": "memory"}
    return {**record, "plan": plan}


@pytest.fixture
def everything(record, planned_record):
    return [
        plan_table(CHOICES),
        dataset_panel(record["dataset"], record["fingerprint"]),
        plan_summary(planned_record),
        score_table(SCORES),
        TableView(factor_table(RUNS, target_dice=0.85)),
        document_view(PAIR),
    ]


def shown(renderable, *, width, **options):
    file = io.StringIO()
    Console(file=file, width=width, **options).print(renderable)
    return file.getvalue()


LONG = CaseScore(case_id="a/very/long/path/" * 12, dice={"肝臓" * 30: 0.5, "liver": 0.25}, hd95_mm={"liver": 2.0})
WIDTHS = range(40, 201) if is_thorough else [*range(40, 201, 9), 100, 101]


def heads_of(document):
    tables = [block for section in document.sections for block in section.blocks if isinstance(block, Table)]
    return [head for table in tables for head in table.heads]


def letters(text):
    return Counter(text) - Counter({" ": 10**9, "\n": 10**9})


@pytest.mark.parametrize("width", WIDTHS)
def test_at_no_width_a_line_is_too_long_or_a_letter_is_lost(everything, long_plan, width):
    # A narrow terminal has one value a line, and there the first head is missing, and that of an empty cell.
    heads = "".join([*heads_of(PAIR), "class case worst cases Measure setting value why :" * 3])
    for renderable in [*everything, long_plan, score_table([LONG, LONG]), volume_table({"spleen" * 40: [(3, 0.5)]})]:
        text = shown(renderable, width=width)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        expected = shown(renderable, width=10_000)
        assert not letters(expected) - letters(text + heads)


@pytest.fixture
def long_plan(record):
    """A plan whose keys, values and reasons are longer than those of any rule."""
    words = "every case has a spacing of 1 x 1 x 1 mm " + "extraordinarily" * 20
    long = Choice(key="data.augment.low_resolution_probability", value=["value"] * 9, reason=words)
    return plan_table([*CHOICES, long])


def test_the_summary_of_a_plan_has_a_line_for_each_thing(planned_record):
    lines = shown(plan_summary(planned_record), width=100).splitlines()
    heads = ["data", "patch", "network", "batch", "precision", "cache", "time"]
    assert [line.split()[0] for line in lines[1:-1]] == heads
    assert "260 cases, 218 for training, 42 for validation (fold 0 held out)" in lines[0]
    assert "--verbose" in lines[-1]
    assert len(lines) <= 9
    planned_record["plan"]["train"] |= {"steps": 1, "target_dice": 0.85, "time_budget_s": 0.0}
    assert "until 1 step or Dice 0.85" in shown(plan_summary(planned_record), width=100)


def test_no_escape_codes_in_a_pipe_and_no_colors_with_no_color(everything, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    for renderable in everything:
        assert "\x1b" not in shown(renderable, width=80)
        colorless = shown(renderable, width=80, force_terminal=True, no_color=True)
        assert not any(f"\x1b[{color}m" in colorless for color in range(30, 38))


@pytest.mark.parametrize("width", [60, 120])
def test_the_plan_keeps_apart_what_would_change_the_results(width):
    text = shown(plan_table(CHOICES), width=width)
    order = [
        "CHANGES THE RESULTS",
        "data.patch.shape_voxel",
        "CHANGES ONLY ROUNDING",
        "precision.channels_last",
        "CHANGES ONLY SPEED AND MEMORY",
        "data.cache.tier",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "rounded up" in text


@pytest.mark.parametrize("width", [60, 120])
def test_the_plan_marks_what_was_measured_and_says_how_to_change_a_choice(width):
    text = shown(plan_table(CHOICES), width=width)
    assert "precision.channels_last +" in text
    assert "data.cache.tier +" not in text
    assert "+ measured on this machine" in text
    assert "Change a choice with --set KEY=VALUE" in text
    assert "measured on this machine" not in shown(plan_table(CHOICES[:2]), width=width)


def test_the_columns_of_all_groups_stand_below_each_other():
    lines = shown(plan_table(CHOICES), width=120).splitlines()
    heads = [line for line in lines if line.startswith("setting")]
    assert len(heads) == 3
    assert len({(line.index("value"), line.index("why")) for line in heads}) == 1


def test_the_narrow_plan_has_no_blanks_at_the_ends_of_its_lines():
    lines = shown(plan_table(CHOICES), width=60).splitlines()
    assert lines == [line.rstrip() for line in lines]
    assert "    61 MiB of 102 GiB" in lines


def test_text_from_data_is_never_read_as_markup(everything):
    text = "".join(shown(renderable, width=120) for renderable in everything)
    for literal in ("[red]memory[/red]", "case_7 [bold]", "[tumour]", "Plain [x]"):
        assert literal in text


def test_scores_show_the_five_worst_cases():
    text = shown(score_table(SCORES), width=80)
    assert "worst cases" in text
    assert [f"case_{i}" in text for i in range(8)] == [False] * 3 + [True] * 5
    assert "n/a" in text
    assert "worst cases" not in shown(score_table(SCORES[:1]), width=80)


def test_the_headline_of_scores_says_what_it_leaves_out():
    missed = CaseScore(case_id="a", dice={"liver": 0.9, "jaw": 0.0, "cyst": None}, hd95_mm={"liver": 2.0, "jaw": None})
    text = shown(score_table([missed]), width=100)
    assert "1 of 3 classes in no case" in text
    assert "HD95: 1 of 2 structures left out" in text
    whole = CaseScore(case_id="a", dice={"liver": 0.9}, hd95_mm={"liver": 2.0})
    assert "left out" not in shown(score_table([whole]), width=100)


def test_the_data_set_says_whether_cases_were_held_out(record):
    assert "fold 0 held out" in shown(dataset_panel(record["dataset"], {}), width=120)
    record["dataset"] |= {"held_out": False, "fold": "all"}
    assert "not held out" in shown(dataset_panel(record["dataset"], {}), width=140)


def test_the_panel_says_how_bright_and_how_rare_things_are(record):
    text = shown(dataset_panel(record["dataset"], record["fingerprint"]), width=120)
    assert "foreground 101.4 ± 17.2" in text
    assert "uint8 (260); rarest: posterior 2.50%, anterior 2.70%" in text


def test_factors_stand_beside_the_run_they_belong_to():
    lines = shown(TableView(factor_table(RUNS, target_dice=0.85)), width=80).splitlines()
    assert lines[1].split() == ["Measure", "Plain", "[x]", "Ours", "Factor"]
    assert next(line for line in lines if line.startswith("Time to Dice 0.85")).split()[-1] == "4.8×"


def test_two_runs_in_short_are_the_verdict_the_notices_the_factors_and_the_accuracy():
    text = shown(document_view(PAIR), width=120)
    lines = text.splitlines()
    assert lines[0].startswith(
        "Ours reached Dice 0.85 in 50 s, Plain [x] in 4 min: 4.8 times faster. Accuracy: the same"
    )
    assert "note: Plain [x] has not finished." in lines
    assert "The target of 0.850 is asked for;" in text
    liver = next(line for line in lines if line.startswith("liver"))
    assert liver.split()[3:] == ["±0.000", "±0.000", "to", "±0.000", "6", "yes:", "same"]
    assert "HD95 (mm) by structure, paired by case" in lines
    assert "Each run" not in text, "the page has it"


def test_runs_without_target_and_scores_have_only_factors_in_short():
    text = shown(document_view(comparison_document(RUNS, "Two")), width=120)
    assert "The target of" not in text
    assert "95 % interval" not in text
    assert "Images per second" in text


def test_one_structure_is_not_repeated_as_the_mean_of_all():
    alone = [CaseScore(case_id=str(i), dice={"liver": 0.8}) for i in range(3)]
    text = shown(document_view(comparison_document(RUNS, "Two", parity=paired_parity(alone, alone))), width=80)
    assert "all structures" not in text
    assert "HD95" not in text
