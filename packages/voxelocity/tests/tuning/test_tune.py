"""`tune` with trials of milliseconds in place of trainings: what it finds, writes, keeps and refuses."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import voxelocity as vx
from voxelocity.core.records import CaseScore
from voxelocity.core.requests.tune import TuneRequest
from voxelocity.planning.config import plan_with
from voxelocity.report import LabeledRun, paired_trainings
from voxelocity.tuning import by_range, dice, measure_training
from voxelocity.tuning import tune as tuning
from voxelocity.tuning.by_dice import tune_by_dice
from voxelocity.tuning.dice import DiceResult, DiceTrial, Length, affordable, compare_by_dice, is_better, rung_length
from voxelocity.tuning.job import TuneJob
from voxelocity.tuning.keeping import keep_settings
from voxelocity.tuning.page import tuning_document
from voxelocity.tuning.result import PAGE, RECORD
from voxelocity.tuning.task import TrialScale
from voxelocity.tuning.trial import TrialLimits, TrialOutcome, run_trial, trial_variables
from voxelocity.tuning.tune import plan_to_tune, tune
from voxelocity_observe.core.console import PlainConsole
from voxelocity_observe.core.errors import ConfigError, VoxelocityError

pytest.importorskip("optuna")

THREADS = "data.feed.num_threads"
# Quicker with more threads; a large batch of windows takes memory.
LINES = """
import json, pathlib, sys
settings, answer = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
rate = 10.0 * (1 + settings.get("data.feed.num_threads", 1))
measured = {"images_per_s": [rate, 1.1 * rate], "wait_share": [0.1, 0.2], "validation_s": [0.001]}
peak = 10**8 * settings.get("window.batch_size", 1)
answer.write_text(json.dumps({"measurements": measured, "peak_host_bytes": peak}))
"""


@pytest.fixture
def trials_of(monkeypatch):
    """Replaces what a trial runs."""
    # Proposals that are known already, before a search counts as exhausted: one setting is searched here.
    monkeypatch.setattr("voxelocity.tuning.study._MAX_KNOWN", 2)

    def replace(lines: str):
        def command(task, private):
            return lambda settings, *, answer, limits: [
                sys.executable, "-I", "-S", "-c", lines, json.dumps(settings), str(answer)
            ]  # fmt: skip

        monkeypatch.setattr(tuning, "_command", command)

    replace(LINES)
    return replace


@pytest.fixture
def run(tiny_msd, tiny_plan, tmp_path, trials_of, quick_commits):
    def make(**given):
        options = {
            "overrides": {**tiny_plan, "planner.measure": "never"},
            "cache_folder": tmp_path / "cache",
            "trials": 8,
            "only": [THREADS],
            "console": PlainConsole(quiet=True),
        }
        return tune(vx.open(tiny_msd), tmp_path / "tune", **{**options, **given})

    return make


def test_the_quickest_settings_are_found_shown_and_taken_by_the_next_plan(run, tiny_msd, tiny_plan, tmp_path):
    result = run()
    most = max(choice for knob in result.knobs for choice in knob.choices)
    default = result.planned.plan.data.feed.num_threads
    assert result.values == {THREADS: most}
    assert result.time_ratios == pytest.approx([(1 + default) / (1 + most)] * 3, rel=0.2)
    keys = {**tiny_plan, "planner.measure": "never"}
    cases = vx.open(tiny_msd)
    assert vx.plan(cases, overrides=keys, cache_folder=tmp_path / "cache").plan.data.feed.num_threads == most
    untuned = {**keys, "planner.use_tuned": False}
    assert vx.plan(cases, overrides=untuned, cache_folder=tmp_path / "cache").plan.data.feed.num_threads == default
    document = tuning_document(result)
    assert "times as long" in document.verdict
    assert "the search took" in document.verdict
    record = json.loads((result.folder / RECORD).read_text())
    assert record["values"] == dict(result.values)
    assert len(record["trials"]) == len(result.study.trials)
    page = (result.folder / PAGE).read_text()
    assert "Images a second of each trial" in page
    assert str(result.kept) in page.replace("<wbr>", "")


def test_failed_trials_are_on_the_page(run, trials_of):
    trials_of("import sys, json\nif json.loads(sys.argv[1])['data.feed.num_threads'] > 1: raise MemoryError\n" + LINES)
    result = run()
    kinds = {trial.outcome.kind for trial in result.study.trials}
    assert kinds == {"finished", "out_of_memory"}
    table = [
        block for section in tuning_document(result).sections if section.title == "Trials" for block in section.blocks
    ]
    assert any("out of memory" in row[2] for row in table[1].rows)


def test_memory_is_searched_without_losing_speed(run, trials_of):
    result = run(goal="memory", only=["window.batch_size"])
    assert result.values == {"window.batch_size": 1}


def test_nothing_that_fits_is_a_result_with_its_cure(run, trials_of):
    trials_of("raise MemoryError")
    result = run()
    assert result.values == {}
    assert result.kept is None
    assert "--memory-limit" in tuning_document(result).verdict


def test_crashes_alone_name_the_first(run, trials_of):
    trials_of("import sys; sys.exit('no such compiler')")
    assert "no such compiler" in tuning_document(run()).verdict


def test_settings_that_crash_when_measured_again_are_not_said_to_lack_memory(run, trials_of):
    again = """
seen = answer.parent.parent / f"seen-{settings['data.feed.num_threads']}"
if seen.exists(): sys.exit("no such compiler")
seen.touch()
"""
    trials_of(LINES + again)
    verdict = tuning_document(run()).verdict
    assert "no such compiler" in verdict
    assert "memory" not in verdict


def test_what_is_no_better_than_the_plan_changes_nothing_and_forgets_an_earlier_tuning(run, trials_of):
    run()
    trials_of(LINES.replace("10.0 * (1 +", "10.0 / (1 +").replace('"data.feed.num_threads", 1))', '"no key", 1))'))
    result = run(overwrite=True)
    assert result.values == {}
    assert json.loads(Path(result.kept).read_text())["values"] == {}


def test_what_a_tuning_did_not_search_or_began_with_stays_tuned(run, tiny_msd, tiny_plan, tmp_path):
    found = run().values[THREADS]
    keys = {**tiny_plan, "planner.measure": "never"}

    def next_plan():
        return vx.plan(vx.open(tiny_msd), overrides=keys, cache_folder=tmp_path / "cache")

    assert run(only=["data.feed.num_batches_ahead"], overwrite=True).values == {}
    base = next_plan().plan
    assert base.data.feed.num_threads == found
    # The settings of the run, which were tuned, are the quickest.
    assert run(base=base, overwrite=True).values == {}
    assert next_plan().plan.data.feed.num_threads == found
    result = run(goal="memory", only=["window.batch_size"], overwrite=True)
    assert result.values == {"window.batch_size": 1}
    planned = next_plan()
    assert (planned.plan.data.feed.num_threads, planned.plan.window.batch_size) == (found, 1)
    reasons = {choice.key: choice.reason for choice in planned.choices}
    assert "for throughput" in reasons[THREADS]
    assert "for memory" in reasons["window.batch_size"]


def test_where_nothing_can_be_kept_nothing_is_said_to_be(run, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "measured").write_text("a file")
    with pytest.warns(UserWarning, match="measured is full or cannot be written"):
        result = run()
    assert result.values
    assert result.kept is None


def test_nothing_is_kept_where_that_is_asked(run, tmp_path):
    assert run(keep=False).kept is None
    assert not list((tmp_path / "cache").glob("measured/*.json"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"goal": "speed"}, "throughput, memory or time-to-dice"),
        ({"memory_limit_bytes": -1}, "8GB"),
        ({"only": ["learning-rate", THREADS]}, "separate test"),
        ({"only": [THREADS], "goal": "time-to-dice"}, "searched only by speed or memory; leave out one"),
        ({"only": ["learning-rate"], "train_s": 60.0}, "a range test has no curves"),
        ({"only": ["learning-rate"], "goal": "memory"}, "a range test has no other goal"),
        ({"num_pairs": 5}, "only time-to-dice makes pairs"),
    ],
)
def test_arguments_out_of_range_are_refused(run, given, words):
    with pytest.raises(ConfigError, match=words):
        run(**given)


def test_a_run_is_tuned_with_its_own_plan(tiny_msd, tiny_plan, tmp_path):
    cases = vx.open(tiny_msd)
    base = vx.plan(cases, overrides={**tiny_plan, "data.batch_size": 3}, cache_folder=tmp_path).plan
    request = TuneRequest(
        out=tmp_path / "tune", device="cpu", overrides={"data.feed.num_threads": 2}, cache_folder=tmp_path
    )
    planned = plan_to_tune(cases, request, base=base)
    assert planned.plan.data.batch_size == 3
    assert planned.plan.data.feed.num_threads == 2
    assert planned.plan.seed == base.seed


def test_a_seed_of_the_command_wins_over_that_of_a_run_and_no_option_is_ignored(tiny_msd, tiny_plan, tmp_path):
    cases = vx.open(tiny_msd)
    base = vx.plan(cases, overrides={**tiny_plan, "seed": 7}, cache_folder=tmp_path).plan

    def tuned(**given):
        request = TuneRequest(out=tmp_path / "tune", device="cpu", cache_folder=tmp_path, **given)
        return plan_to_tune(cases, request, base=base).plan.seed

    assert [tuned(), tuned(seed=4), tuned(overrides={"seed": 5})] == [7, 4, 5]
    with pytest.raises(ConfigError, match=r"seed to 5; leave one of them out"):
        tuned(seed=4, overrides={"seed": 5})
    with pytest.raises(ConfigError, match=r"plans=.*the run that is tuned has a plan; leave it out"):
        tuned(plans=tmp_path / "plans.json")


@pytest.fixture
def range_test(monkeypatch):
    """Replaces what a range test runs."""

    def replace(lines):
        def instead(command, *, answer, **given):
            return run_trial([sys.executable, "-c", lines, str(answer)], answer=answer, **given)

        monkeypatch.setattr(by_range, "run_trial", instead)

    return replace


def test_a_range_test_that_fails_shows_its_last_lines(run, range_test):
    range_test("import sys; sys.exit('no such compiler')")
    with pytest.raises(VoxelocityError, match="no such compiler"):
        run(only=["learning-rate"])


def test_a_range_test_that_a_budget_cuts_off_says_that_it_is_too_short(run, range_test):
    range_test("import time; time.sleep(3600)")
    with pytest.raises(ConfigError, match=r"too short for the range test.*longer time_budget="):
        run(only=["learning-rate"], time_budget_s=0.05)


def test_a_range_test_is_shown_and_kept_only_if_asked(run, range_test, tiny_msd, tiny_plan, tmp_path):
    lines = """
import json, pathlib, sys
rates = [10 ** (-6 + 0.06 * step) for step in range(100)]
losses = [2.0 - (min(step, 60) / 60) ** 2 + max(0, step - 60) for step in range(100)]
pathlib.Path(sys.argv[1]).write_text(json.dumps({"measurements": {"learning_rate": rates, "loss": losses}}))
"""
    range_test(lines)
    result = run(only=["learning-rate"])
    assert result.kept is None
    assert result.values["optimizer.learning_rate"] == pytest.approx(10 ** (-6 + 0.06 * 60) / 10, rel=0.5)
    assert "Loss while the learning rate grows" in (result.folder / PAGE).read_text()
    keys = {**tiny_plan, "planner.measure": "never"}
    planned = vx.plan(vx.open(tiny_msd), overrides=keys, cache_folder=tmp_path / "cache")
    keep_settings(
        planned, {"data.batch_size": 3}, searched=["data.batch_size"], goal="time to a Dice", ratios=[], peak_bytes=0,
        cache=tmp_path / "cache",
    )  # fmt: skip
    kept = run(only=["learning-rate"], keep=True)
    assert kept.planned.plan.data.batch_size == 3, "the rate is for the batch that later plans have"
    plan = vx.plan(vx.open(tiny_msd), overrides=keys, cache_folder=tmp_path / "cache").plan
    assert plan.optimizer.learning_rate == kept.values["optimizer.learning_rate"]
    assert plan.data.batch_size == 3


def test_rungs_and_pairs_together_take_the_budget():
    first = rung_length(Length(seconds=340.0), 5, num_pairs=3)
    # Two rungs of five units each, and six trainings of four.
    assert first.seconds == pytest.approx(10.0)


def test_fewer_candidates_are_compared_where_time_is_short():
    found = [{}, {"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}]
    assert affordable(found, Length(seconds=1000.0), num_pairs=3)[0] == found
    some, first = affordable(found, Length(seconds=400.0), num_pairs=3)
    assert some == found[: len(some)]
    assert 2 <= len(some) < 5
    assert first.seconds >= 20.0
    with pytest.raises(ConfigError, match=r"too short.*--time-budget 5m"):
        affordable(found, Length(seconds=60.0), num_pairs=3)


@pytest.fixture
def by_dice(own_msd, tiny_plan, tmp_path, monkeypatch):
    """The comparison with trainings in this process, whose Dice is planted by batch size; two folds, not declared."""
    keys = {**tiny_plan, "planner.measure": "never", "train.steps": 2}
    description = json.loads((own_msd / "dataset.json").read_text())
    for entry in description["training"]:
        del entry["fold"]
    (own_msd / "dataset.json").write_text(json.dumps(description))
    planned = vx.plan(vx.open(own_msd, num_folds=2), overrides=keys, cache_folder=tmp_path / "cache")
    made = []

    def run_in_place(command, *, answer, **_):
        task = json.loads(Path(command[-2]).read_text())
        made.append(task["keys"])
        if task["keys"]["data.batch_size"] == 5:
            return TrialOutcome(kind="out_of_memory", seconds=1.0, reason="planted")
        finished = tmp_path / "finished"
        if finished.exists():
            shutil.copytree(finished, task["out"])
        else:
            measure_training.measure(task, answer)
            shutil.copytree(task["out"], finished)
        size = task["keys"]["data.batch_size"]
        return TrialOutcome(kind="finished", seconds=1.0, measurements={"dice": (0.1 * size,), "seconds": (1.0,)})

    monkeypatch.setattr(dice, "run_trial", run_in_place)

    def compare(found, planned=planned, **limits):
        return compare_by_dice(
            planned, tmp_path / "tune", found, first=Length(steps=10), num_pairs=2,
            limits=TrialLimits(seconds=60.0, **limits),
        )  # fmt: skip

    return compare, made, planned


def test_halving_keeps_the_better_half_and_pairs_seeds(by_dice):
    compare, made, planned = by_dice
    found = [{}, {"data.batch_size": 3}, {"data.batch_size": 4}, {"data.batch_size": 5}]
    result = compare(found)
    assert result.candidate == {"data.batch_size": 4}
    # Four, then two of twice the length, then two pairs.
    assert [training.rung for training in result.trainings] == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert [keys["train.steps"] for keys in made] == [10, 10, 10, 10, 20, 20, 40, 40, 40, 40]
    seeds = [(training.seed, bool(training.settings)) for training in result.trainings[-4:]]
    assert seeds == [(0, False), (0, True), (1, True), (1, False)]
    assert len(result.before) == len(result.after) == 2
    assert result.parity is not None
    held = {ref.case_id for ref in planned.cases.split(0).validation}
    assert {score.case_id for score in result.before[0].scores} == held


def judged(ours, theirs, seconds):
    """The judgment of pairs whose Dice, by pair, and seconds to a Dice of 0.5 are planted."""

    class Planted(DiceResult):
        def labeled(self):
            return tuple(
                LabeledRun(label=str(target_s), each_to_target=(target_s,) * len(ours)) for target_s in (10.0, seconds)
            )

    def scores(values):
        return [[CaseScore(case_id="a", dice={"ball": value})] for value in values]

    result = Planted(
        trainings=(), candidate={"data.batch_size": 4}, before=("run",), after=("run",),
        parity=paired_trainings(scores(theirs), scores(ours)), target_dice=0.5, is_taken=False,
    )  # fmt: skip
    return is_better(result)


def test_a_candidate_is_taken_for_a_higher_dice_or_the_same_one_sooner():
    same = [0.801, 0.800, 0.802]
    assert judged(same, [0.800, 0.801, 0.801], seconds=8.0)
    assert not judged(same, [0.800, 0.801, 0.801], seconds=9.9)
    assert judged([0.9, 0.91, 0.9], [0.8, 0.81, 0.8], seconds=20.0)
    assert not judged([0.7, 0.71, 0.7], [0.8, 0.81, 0.8], seconds=1.0)


def test_a_candidate_that_failed_once_is_not_taken(by_dice):
    compare, _, _ = by_dice
    result = compare([{}, {"data.batch_size": 4}])
    parity = paired_trainings(*([[CaseScore(case_id="a", dice={"ball": dice})]] * 2 for dice in (0.8, 0.9)))
    higher = replace(result, parity=parity)
    assert is_better(higher)
    outcome = TrialOutcome(kind="out_of_memory", seconds=1.0, reason="planted")
    failed = replace(result.trainings[-1], settings=result.candidate, outcome=outcome, run=None)
    assert not is_better(replace(higher, trainings=(*result.trainings, failed)))


@pytest.mark.parametrize(("finished", "shown"), [((True, True), 2), ((True, False), 1), ((False, True), 0)])
def test_curves_of_a_tuned_training_are_not_shown_as_those_before(
    planned, tmp_path, monkeypatch, capsys, finished, shown
):
    class Trainer:
        def __init__(self, planned, folder, limits, on_training):
            self.on_training = on_training

        def train(self, rung, settings, seed, length, *, is_pair):
            is_done = finished[1 if settings else 0]
            outcome = TrialOutcome(kind="finished" if is_done else "crashed", seconds=1.0, reason="it broke",
                                   measurements={"dice": (0.5,)})  # fmt: skip
            trial = DiceTrial(
                rung=rung, settings=settings, seed=seed, outcome=outcome, run=dict(settings) if is_done else None
            )
            self.on_training(trial)
            return trial

    monkeypatch.setattr(tuning, "TrialTrainer", Trainer)
    job = TuneJob(
        planned=planned, limits=TrialLimits(seconds=60.0), cache=tmp_path,
        request=TuneRequest(out=tmp_path / "tune", train_s=30.0),
    )  # fmt: skip
    assert tuning._train_both(job, {THREADS: 3}) == ({}, {THREADS: 3})[:shown]
    assert ("crashed: it broke" in capsys.readouterr().out) == (False in finished)


def test_what_the_interval_leaves_open_is_not_taken():
    assert not judged([0.9, 0.7, 0.85], [0.8, 0.8, 0.8], seconds=1.0)


def test_trainings_of_an_earlier_call_are_not_repeated(by_dice):
    compare, made, _ = by_dice
    found = [{}, {"data.batch_size": 3}]
    first = compare(found)
    num_made = len(made)
    second = compare(found)
    assert len(made) == num_made
    assert second.candidate == first.candidate
    assert [run.scores for run in second.after] == [run.scores for run in first.after]


def test_other_free_memory_repeats_no_training_but_those_that_it_may_have_decided(by_dice):
    compare, made, planned = by_dice
    compare([{}, {"data.batch_size": 5}])
    num_made = len(made)
    keys = {"data.cache.max_bytes": 2 * planned.plan.data.cache.max_bytes, "data.cache.folder_max_bytes": 12345}
    again = replace(planned, plan=plan_with(planned.plan, keys, where="test"))
    compare([{}, {"data.batch_size": 5}], again, device_bytes=10**12)
    # The batch of five ran out of memory.
    assert [made_keys["data.batch_size"] for made_keys in made[num_made:]] == [5]


def test_a_training_whose_folder_was_deleted_is_made_again_and_no_other(by_dice, tmp_path):
    compare, made, _ = by_dice
    found = [{}, {"data.batch_size": 3}]
    first = compare(found)
    num_made, runs = len(made), tmp_path / "tune" / "runs"
    shutil.rmtree(runs / "rung-0-batch_size-3-seed-0")
    (runs / "pair-plan-seed-1" / "events.jsonl").unlink()
    with pytest.warns(UserWarning, match="is made again") as said:
        second = compare(found)
    assert [keys["data.batch_size"] for keys in made[num_made:]] == [3, made[0]["data.batch_size"]]
    assert ["rung-0-batch_size-3-seed-0" in str(said[0].message), "pair-plan-seed-1" in str(said[1].message)] == [
        True
    ] * 2
    assert second.candidate == first.candidate
    assert [run.scores for run in second.before] == [run.scores for run in first.before]


def test_trainings_are_repeated_where_they_are_to_be_overwritten(by_dice, tmp_path):
    _, made, planned = by_dice

    def tuned(*, overwrite):
        job = TuneJob(
            planned=planned, limits=TrialLimits(seconds=60.0), cache=tmp_path / "cache",
            request=TuneRequest(
                out=tmp_path / "tune", goal="time-to-dice", num_pairs=2, overwrite=overwrite, keep=False
            ),
        )  # fmt: skip
        tune_by_dice(job, budget=Length(steps=60), found=[{}, {"data.batch_size": 1}])
        return len(made)

    assert [tuned(overwrite=False), tuned(overwrite=False), tuned(overwrite=True)] == [2, 2, 4]


def test_every_gpu_that_a_training_may_take_is_limited(monkeypatch, tmp_path):
    from voxelocity.tuning import measure_training

    limited = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(measure_training, "limit_device_memory", lambda *given: limited.append(given))
    monkeypatch.setattr(measure_training, "open_cases", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measure_training.measure(
            {"device_limit_bytes": 10**9, "dataset": "data", "num_folds": 2, "out": "run"}, tmp_path / "answer"
        )
    assert [(str(device), limit) for device, limit in limited] == [("cuda:0", 10**9), ("cuda:1", 10**9)]


def test_the_plan_itself_as_the_best_needs_no_pairs(by_dice):
    compare, _made, _planned = by_dice
    result = compare([{}, {"data.batch_size": 1}])
    assert result.candidate == {}
    assert not result.is_taken
    assert result.before == ()


def test_a_tuning_continues_with_more_trials_time_and_other_free_memory(run, monkeypatch):
    first = run(trials=1, time_budget_s=600.0)
    monkeypatch.setattr("voxelocity.planning.machine.available_memory_bytes", lambda: 3 * 10**9)
    second = run(trials=4)
    number = len(first.study.trials)
    assert second.study.trials[:number] == first.study.trials
    assert len(second.study.trials) > number


def test_another_limit_of_memory_is_another_study(run):
    run(trials=1)
    with pytest.raises(ConfigError, match="memory limit"):
        run(trials=1, memory_limit_bytes=10**9)


def test_without_a_limit_a_trial_may_take_what_is_free(run, trials_of):
    trials_of(LINES.replace("10**8", "10**15"))
    assert run(trials=1).study.winner is None


def test_only_the_first_rank_tunes_and_all_get_its_result(run, monkeypatch, tmp_path):
    class Follower:
        """A rank other than the first one."""

        def limit_waiting(self, limit_s):
            return contextlib.nullcontext()

        def run_on_leader(self, work):
            return "the leader's result"

    timeouts = []

    def join_world(*, timeout):
        timeouts.append(timeout)
        return contextlib.nullcontext(Follower())

    monkeypatch.setattr(tuning, "join_world", join_world)
    assert run(time_budget_s=86_400.0) == "the leader's result"
    assert timeouts[0].total_seconds() > 86_400.0, "the others wait as long as the first one tunes"
    assert not (tmp_path / "tune").exists()


def test_a_trial_has_the_threads_of_a_rank(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert trial_variables()["OMP_NUM_THREADS"] == "1", "the user's own"
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("voxelocity.tuning.trial.cpu_budget", lambda: 6)
    assert trial_variables()["OMP_NUM_THREADS"] == "6"


@pytest.mark.nightly
def test_a_real_tuning_of_tiny_trainings(tiny_msd, tiny_plan, tmp_path):
    scale = TrialScale(window_s=0.1, num_windows=2, num_cases=2, validation_s=5.0)
    result = tune(
        vx.open(tiny_msd), tmp_path / "tune", overrides={**tiny_plan, "planner.measure": "never"}, trials=2,
        only=[THREADS], scale=scale, cache_folder=tmp_path / "cache", memory_limit_bytes=4 * 10**9, train_s=30.0,
    )  # fmt: skip
    assert {trial.outcome.kind for trial in result.study.trials} == {"finished"}
    assert all(0 < trial.outcome.peak_host_bytes < 4 * 10**9 for trial in result.study.trials)
    assert result.study.winner is not None
