import importlib.util
import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import voxelocity
from voxelocity.core.records import CaseScore
from voxelocity.data.decode import read_case
from voxelocity.data.decode.write import write_scan
from voxelocity.infer import save_model
from voxelocity.metrics import summarize
from voxelocity.planning import make_plan, model_spec
from voxelocity.report import LabeledRun
from voxelocity.step import build_network
from voxelocity_lab.bench.body import make_bodies
from voxelocity_lab.bench.phantom import BenchFolders
from voxelocity_lab.bench.race import nnunet_script, rounds, scenario, sides
from voxelocity_lab.bench.race.job import LIMITS, script_job
from voxelocity_lab.bench.race.judging import judge
from voxelocity_lab.bench.race.nnunet_script import mirror_axes
from voxelocity_lab.bench.race.rounds import Outcome, bootstrap_interval, run_rounds
from voxelocity_lab.bench.race.scenario import TASKS, RaceSettings, RaceTask, check_sides, run_race
from voxelocity_lab.bench.race.sides import LABELS, Race, own_keys, with_our_imports
from voxelocity_observe.core.errors import InputError, VoxelocityError

SMALL = {
    "data.prepare.spacing_mm": [6.0, 6.0, 6.0],
    "data.patch.shape_voxel": [16, 16, 16],
    "network.name": "unet",
    "network.widths": [4, 8],
    "network.strides": [[2, 2, 2]],
}


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    return make_bodies(tmp_path_factory.mktemp("data") / "phantoms", 4, scale=0.2)


@pytest.fixture
def race(phantoms, tmp_path):
    planned = make_plan(voxelocity.open(phantoms), device="cpu", overrides=LIMITS | SMALL)
    return Race(dataset=phantoms, planned=planned, out=tmp_path, target_dice=0.5, limit_s=90.0)


def mean_dice(race, weights):
    return summarize(judge(race.planned, weights)).mean_dice


def run(label, seconds=None, dice=None):
    return LabeledRun(label=label, seconds_to_target=seconds, final_dice=dice)


def test_the_median_over_the_seeds_stands_with_its_range_and_with_what_was_not_reached(race):
    sides = (tuple(run("peer", seconds) for seconds in (80.0, 70.0, 60.0)),
             tuple(run("ours", seconds) for seconds in (40.0, None, 30.0)))  # fmt: skip
    outcome = Outcome(race=race, sides=sides, seeds=(0, 1, 2))
    assert outcome.table.rows[1] == ["ours", "40 s", "30 s to 40 s", "2 of 3", "40 s", "not reached", "30 s"]
    assert outcome.runs[1].seconds_to_target == 40.0
    missed = replace(outcome, sides=(sides[0], (sides[1][1], sides[1][1], sides[1][0])))
    assert missed.runs[1].seconds_to_target is None
    assert json.loads(json.dumps(outcome.to_plain()))["seconds_to_target"]["ours"] == [40.0, None, 30.0]


def test_a_target_that_was_not_reached_counts_as_the_limit(race):
    outcome = Outcome(race=race, sides=((run("peer", 60.0),), (run("ours"),)), seeds=(0,))
    comparison = outcome.comparison("phantoms")
    assert [(figure.name, figure.values) for figure in comparison.figures] == [("ours", (90.0,)), ("peer", (60.0,))]
    assert comparison.figures[0].note == "1 of 1 did not reach it and count as the limit"
    assert comparison.title == "phantoms: time to Dice 0.5"


@pytest.mark.parametrize(
    ("fast", "ours", "shown"),
    [
        ([60.0, 60.0], [30.0, 20.0], "2.50"),
        # The limit is 90 s.
        ([None, 60.0], [30.0, 20.0], "at least 3.00"),
        ([60.0, 45.0], [None, 15.0], "at most 1.83"),
        ([None, 60.0], [30.0, None], "n/a"),
        ([None, 60.0], [None, 20.0], "3.00"),
        ([None, None], [None, None], "n/a"),
    ],
)
def test_a_factor_of_trainings_that_were_ended_is_a_bound(race, fast, ours, shown):
    pairs = (("fast", fast), ("ours", ours))
    outcome = Outcome(
        race=race, sides=tuple(tuple(run(LABELS[name], s) for s in seconds) for name, seconds in pairs), seeds=(0, 1)
    )
    (row,) = outcome.factor_table.rows
    assert row[3] == shown
    assert row[4].startswith("n/a") == (shown != "2.50"), "an interval is only of factors that are known"


def test_a_page_says_what_the_whole_training_of_one_side_alone_includes(race):
    outcome = Outcome(race=race, sides=((run("peer", 60.0),), (run("ours", 50.0),)), seeds=(0,))
    page = outcome.document(title="a race", summary="All alike.", command="c")
    assert page.summary.startswith("All alike. Only Voxelocity's whole training includes a final validation")


def test_without_a_target_the_dice_is_reported(race):
    race = replace(race, target_dice=0.0)
    outcome = Outcome(race=race, sides=((run("peer", dice=0.8),), (run("ours", dice=0.81234),)), seeds=(7,))
    assert outcome.table.rows[1] == ["ours", "0.8123", "0.8123 to 0.8123", "0.8123"]
    comparison = outcome.comparison("phantoms")
    assert (comparison.better, comparison.figures[0].values) == ("larger", (0.81234,))
    assert comparison.title == "phantoms: Dice after 1 min 30 s"


def test_a_training_of_too_few_steps_has_no_dice_in_the_record(race):
    short = replace(run("ours", dice=0.3), unlearned="it made no step", final_dice=None)
    outcome = Outcome(
        race=replace(race, target_dice=0.0), sides=((run("peer", dice=0.8),), (short,)), seeds=(7,),
        scores=tuple(((CaseScore(case_id="a", dice={"organ": 0.5}),),) for _ in range(2)),
    )  # fmt: skip
    assert outcome.parity() is None
    assert outcome.comparison("phantoms") is None
    assert outcome.table.rows[1] == ["ours", "n/a", "", "n/a"]
    assert outcome.to_plain()["unlearned"] == {"peer": [""], "ours": ["it made no step"]}
    page = outcome.document(title="t", summary="s", command="c")
    assert "ours has no score: it made no step." in page.notices
    assert not any(card.name.startswith("Final Dice") for card in page.cards)


def test_each_round_is_begun_by_another_side_and_judged_where_there_is_no_target(race, monkeypatch):
    started, kept = [], []
    monkeypatch.setattr(rounds, "train_side", lambda name, race, seed: run(LABELS[name]))
    dice = {"ours": [0.25, 0.5], "fast": [0.125, 0.25]}

    def judge(planned, weights):
        side = "ours" if weights.name == "ours" else "fast"
        return (CaseScore(case_id="a", dice={"organ": dice[side].pop(0)}),)

    monkeypatch.setattr(rounds, "judge", judge)
    outcome = run_rounds(
        replace(race, target_dice=0.0),
        ("fast", "ours"),
        (5, 6),
        on_start=lambda side, seed: started.append((side, seed)),
        on_outcome=kept.append,
    )
    fast, ours = LABELS["fast"], LABELS["ours"]
    assert started == [(fast, 5), (ours, 5), (ours, 6), (fast, 6)]
    # The second round is begun by ours.
    assert [[training.final_dice for training in side] for side in outcome.sides] == [[0.125, 0.25], [0.25, 0.5]]
    gain = outcome.to_plain()["ours_higher_by"][fast]
    assert (gain["mean"], gain["n"], gain["unit"]) == (0.1875, 2, "training")
    assert gain["low"] < 0.0 < gain["high"], "two trainings a side show little"
    assert kept[0].to_plain()["ours_higher_by"][fast]["low"] is None, "one case of one training has no interval"
    assert [training.seeds for training in kept] == [(5,), (5, 6)]


def test_all_sides_validate_after_as_many_epochs(race):
    # Three cases, a patch each, two a batch: three steps are two epochs.
    assert own_keys(race)["train.validate_every_steps"] == 3
    assert own_keys(race)["train.target_dice"] == 0.5
    assert own_keys(race)["train.validation_cases"] == 0, "all of them, as the scripts judge"
    assert own_keys(replace(race, target_dice=0.0)) == {"train.time_budget_s": 90.0}


def test_one_side_has_our_choices_in_float32_alone(race):
    race = replace(race, keys={"network.name": "unet"}, equal_keys={"network.name": "dynunet"})
    found = {side: sides._keys_of(side, race) for side in ("equal", "float32", "ours")}
    assert found == {
        "equal": {"network.name": "dynunet"},
        "float32": {"network.name": "unet", "precision.compute": "float32"},
        "ours": {"network.name": "unet"},
    }


def test_the_switched_script_takes_two_classes_from_voxelocity():
    script = Path(scenario.__file__).with_name("monai_script.py").read_text()
    changed = with_our_imports(script)
    assert "from voxelocity.monai import CacheDataset, ThreadDataLoader" in changed
    assert len(changed.splitlines()) == len(script.splitlines()) + 1


def test_weights_are_judged_alike_wherever_they_lie(race, tmp_path):
    spec = model_spec(race.planned)
    network = build_network(spec.network, num_channels=1, num_classes=4, seed=3)
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", network, spec)
    torch.save(network.state_dict() | {"registered.twice": torch.zeros(1)}, tmp_path / "script.pt")
    dice = mean_dice(race, tmp_path / "model")
    assert 0.0 < dice < 1.0
    assert mean_dice(race, tmp_path / "script.pt") == dice


@pytest.mark.parametrize("is_equal", [False, True])
def test_the_peers_train_adamw_and_ours_what_its_rules_choose_unless_all_are_to_be_equal(
    phantoms, tmp_path, monkeypatch, is_equal
):
    monkeypatch.setitem(TASKS, "tiny", RaceTask(words="tiny", dataset=lambda folders: phantoms, target_dice=0.5))
    raced = []

    def keep(race, *arguments, **options):
        raced.append(race)
        raise InputError("enough")

    monkeypatch.setattr(scenario, "run_rounds", keep)
    settings = RaceSettings(task="tiny", is_equal=is_equal)
    with pytest.raises(InputError, match="enough"):
        run_race(settings, work=tmp_path, keys={"data.prepare.spacing_mm": [6.0, 6.0, 6.0]}, on_start=print)
    (race,) = raced
    assert settings.name == ("tiny_equal" if is_equal else "tiny")
    assert race.planned.plan.optimizer.name == "adamw"
    assert race.planned.plan.optimizer.average_decay == 0.0
    ours = make_plan(voxelocity.open(phantoms), device="cpu", overrides=race.keys, time_budget_s=race.limit_s).plan
    same = (ours.network, ours.optimizer) == (race.planned.plan.network, race.planned.plan.optimizer)
    assert same == is_equal
    assert ours.optimizer.name == ("adamw" if is_equal else "muon")


@pytest.mark.nightly
@pytest.mark.parametrize("budget_s", [0.0, 25.0])
def test_every_side_races(phantoms, tmp_path, monkeypatch, budget_s):
    task = RaceTask(words="tiny phantoms", dataset=lambda folders: phantoms, target_dice=0.01, epochs_per_validation=1)
    monkeypatch.setitem(TASKS, "tiny", task)
    # nnU-Net plans a network of its own, too large for these cases.
    names = ("fast", "plain", "switched", "ours")
    record, outcome = run_race(
        RaceSettings(task="tiny", num_seeds=1, budget_s=budget_s, sides=check_sides(names)),
        work=tmp_path / "work",
        out=tmp_path / "out",
        keys=SMALL,
        on_start=lambda side, seed: None,
    )
    assert [side[0].label for side in outcome.sides] == [LABELS[name] for name in names]
    figures = record.comparisons[0].figures
    assert figures[0].name == "Voxelocity"
    assert all(0.0 < figure.values[0] < (1.0 if budget_s else 480.0) for figure in figures)
    name = "tiny_25s" if budget_s else "tiny"
    text = (tmp_path / "out" / f"bench_race_{name}.json").read_text()
    assert json.loads(text)["seeds"] == [0]
    assert str(tmp_path) not in text, "records go into the repository"
    assert "tiny phantoms" in (tmp_path / "out" / f"bench_race_{name}.html").read_text()


def test_the_labels_of_three_organs_are_made_of_seven(tmp_path, real_data):
    table = TASKS["organs"].dataset(BenchFolders(work=tmp_path, data=real_data))
    cases = voxelocity.open(table)
    assert len(cases) == 20
    assert cases.class_names == ("background", "Brainstem", "SpinalCord", "Mandible")
    assert len(cases.split(0).validation) == 4


def test_scripts_can_follow_the_plan_of_organs_with_sides_which_they_never_flip(tmp_path, real_data):
    task = TASKS["openkbp"]
    dataset = task.dataset(BenchFolders(work=tmp_path, data=real_data))
    planned = make_plan(voxelocity.open(dataset), device="cpu", overrides={**LIMITS, **task.peer_keys})
    job = script_job(planned, recipe="fast", target_dice=0.0, budget_s=60.0, epochs_per_validation=0)
    assert (job["num_classes"], job["flip_probability"]) == (8, [0.0, 0.0, 0.0])
    assert mirror_axes(job["flip_probability"], (0, 1, 2)) is None
    ours = make_plan(voxelocity.open(dataset), device="cpu", overrides={**LIMITS, **task.keys}).plan
    assert ours.data.augment.flip_probability[0] > 0.0


def test_a_rate_of_nnunets_trainer_counts_the_patches_that_it_was_fed():
    trainer = object.__new__(nnunet_script.SteppedTrainer)
    trainer.job = {"training": list(range(5)), "images_per_batch": 2, "patches_per_image": 2, "target_dice": 0.5,
                   "budget_s": 1e12}  # fmt: skip
    trainer.began_unix_s = trainer.begin_s = trainer.num_patches = 0
    trainer.trainer = SimpleNamespace(
        network=torch.nn.Identity(), dataloader_train=itertools.repeat({"data": torch.zeros(4, 1)}),
        train_step=lambda batch: {"loss": 1.0},
    )  # fmt: skip
    trainer.epoch()
    # Two batches of four; five cases would be ten patches.
    assert trainer.num_patches == 8


def test_nnunet_mirrors_the_axes_that_the_job_flips():
    assert mirror_axes((0.5, 0.0, 0.0), (0, 1, 2)) == (2,)
    assert mirror_axes((0.5, 0.5, 0.0), (1, 0, 2)) == (0, 2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: check_sides(["slow", "ours"]),
            "unknown side 'slow'; choose among fast, plain, switched, nnunet, equal, ours",
        ),
        (lambda: check_sides(["fast"]), "--sides fast: a race needs 'ours' and another side, as --sides fast,ours"),
        (lambda: check_sides(["ours"]), "--sides ours: a race needs 'ours' and another side, as --sides fast,ours"),
        (
            lambda: run_race(RaceSettings(task="phantom"), on_start=print),
            "unknown task 'phantom'; did you mean 'phantoms'",
        ),
        (
            lambda: TASKS["hippocampus"].dataset(BenchFolders(work=Path("."))),
            "needs the data set hippocampus, which is not",
        ),
    ],
)
def test_what_cannot_be_raced_is_refused_in_words(call, text):
    with pytest.raises(InputError, match=text):
        call()


@pytest.mark.parametrize("is_installed", [False, True])
def test_sides_stand_in_the_order_of_the_pages(monkeypatch, is_installed):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if is_installed else None)
    assert check_sides([]) == ("fast", "plain", "switched", *(["nnunet"] if is_installed else []), "ours")
    assert check_sides(["ours", "fast"]) == ("fast", "ours")
    if not is_installed:
        with pytest.raises(InputError, match="the side 'nnunet' needs nnU-Net; install it with pip install nnunetv2"):
            check_sides(["nnunet", "ours"])


def test_predictions_of_another_program_are_judged_against_the_labels(race, tmp_path):
    cases = race.planned.cases
    (ref,) = cases.split(0).validation
    volume = read_case(ref, label_values=cases.label_values)
    write_scan(tmp_path / "000.nii.gz", volume.label, volume.grid)
    assert mean_dice(race, tmp_path) == 1.0
    write_scan(tmp_path / "000.nii.gz", np.where(volume.label == 2, 0, volume.label), volume.grid)
    assert mean_dice(race, tmp_path) == pytest.approx(2 / 3)


def test_a_page_of_few_seeds_says_how_to_repeat_it_with_more(race):
    outcome = Outcome(race=race, sides=((run("peer", 60.0),), (run("ours", 50.0),)), seeds=(0,))
    page = outcome.document(title="a race", summary="", command="voxelocity bench x --seeds 1 --equal")
    assert page.notices[0].endswith("With more seeds: voxelocity bench x --equal --seeds 3")


def planted_rounds(race, monkeypatch, seconds, **options):
    """Rounds whose trainings reach the target after these seconds, by side and by home; an error is raised."""
    monkeypatch.setattr(rounds, "_NUM_RESAMPLES", 200)
    kept, trained = [], []

    def train(name, race, seed):
        trained.append((name, seed, race.home is not None and race.home.exists()))
        if race.home is not None:
            race.home.mkdir(parents=True, exist_ok=True)
        value = seconds[name].pop(0)
        if isinstance(value, BaseException):
            raise value
        return run(LABELS[name], value)

    monkeypatch.setattr(rounds, "train_side", train)
    names = tuple(seconds)
    call = {"on_start": lambda side, seed: None, "on_outcome": kept.append, **options}
    return kept, trained, lambda seeds: run_rounds(race, names, seeds, **call)


def test_a_training_that_fails_loses_neither_the_other_sides_nor_the_other_rounds(race, monkeypatch):
    seconds = {"fast": [30.0, VoxelocityError("no memory"), 40.0], "equal": [15.0, 9.0, 20.0], "ours": [10.0, 9.0, 8.0]}
    _, _, start = planted_rounds(race, monkeypatch, seconds)
    outcome = start((0, 1, 2))
    assert outcome.failures == {(LABELS["fast"], 1): "no memory"}
    fast, equal, ours = outcome.sides
    assert outcome.factors(ours, fast) == [3.0, 5.0]
    assert outcome.factors(equal, fast) == [2.0, 2.0]
    assert [figure.values for figure in outcome.comparison("x").figures] == [(10.0, 8.0), (30.0, 40.0), (15.0, 20.0)]
    page = outcome.document(title="t", summary="s", command="c --seeds 3")
    assert any("seed 1, has no figures: no memory" in notice for notice in page.notices)
    rows = {(row[0], row[1]): row[3] for row in outcome.factor_table.rows}
    assert rows == {(LABELS["equal"], LABELS["fast"]): "2.00", (LABELS["ours"], LABELS["fast"]): "4.00"}
    assert json.loads(json.dumps(outcome.to_plain()))["failures"] == [[LABELS["fast"], 1, "no memory"]]
    _, _, start = planted_rounds(race, monkeypatch, {"fast": [VoxelocityError("no memory")], "ours": [1.0]})
    with pytest.raises(VoxelocityError, match=r"no training of .* succeeded: no memory"):
        start((0,))


def test_ctrl_c_in_a_round_keeps_what_was_measured(race, monkeypatch):
    kept, _, start = planted_rounds(race, monkeypatch, {"fast": [30.0, KeyboardInterrupt()], "ours": [10.0, 15.0]})
    with pytest.raises(KeyboardInterrupt):
        start((0, 1))
    outcome = kept[-1]
    # The second round is begun by ours.
    assert [[training.seconds_to_target for training in side] for side in outcome.sides] == [[30.0, None], [10.0, 15.0]]
    assert outcome.failures == {(LABELS["fast"], 1): "stopped by Ctrl-C"}
    assert outcome.factors(outcome.sides[1], outcome.sides[0]) == [3.0]


def test_homes_are_empty_the_first_time_of_each_round_and_kept_the_second_time(race, monkeypatch):
    seconds = {"fast": [30.0, 28.0, 30.0, 28.0], "ours": [15.0, 7.0, 15.0, 7.0]}
    _, trained, start = planted_rounds(race, monkeypatch, seconds, has_homes=True)
    outcome = start((0, 1))
    assert [has_home for _, _, has_home in trained] == [False, True] * 4
    assert outcome.factors(outcome.sides[1], outcome.sides[0]) == [4.0, 4.0]
    assert outcome.cold.factors(outcome.cold.sides[1], outcome.cold.sides[0]) == [2.0, 2.0]
    assert [row[2:4] for row in outcome.factor_table.rows] == [["empty", "2.00"], ["kept", "4.00"]]
    assert outcome.to_plain()["cold"]["seconds_to_target"][LABELS["ours"]] == [15.0, 15.0]


def test_no_round_begins_that_would_end_too_late(race, monkeypatch):
    _, _, start = planted_rounds(race, monkeypatch, {"fast": [30.0] * 9, "ours": [10.0] * 9}, within_s=0.0)
    assert start((0, 1, 2)).seeds == (0,)


def test_all_sides_compute_on_the_device_of_the_plan(race, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert sides._environ(race)["CUDA_VISIBLE_DEVICES"] == "", "they would take the GPU that they see"
    on_gpu = replace(race.planned, machine=replace(race.planned.machine, device="cuda", device_index=0))
    assert sides._environ(replace(race, planned=on_gpu))["CUDA_VISIBLE_DEVICES"] == "3"


def test_programs_of_another_home_find_nothing_that_was_kept_elsewhere(race, tmp_path, monkeypatch):
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, "/elsewhere")
    environ = sides._environ(replace(race, home=tmp_path / "home"))
    assert "/elsewhere" not in environ.values()
    assert environ["HOME"] == str(tmp_path / "home")
    assert Path(environ["TMPDIR"]).is_dir()


def test_the_interval_of_a_median_holds_it_and_widens_with_the_spread():
    assert bootstrap_interval([2.0]) is None
    assert bootstrap_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    low, high = bootstrap_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert 1.0 <= low < 3.0 < high <= 5.0
