"""Several folds as one command: the same runs as fold by fold, one plan, and what happens when a fold fails."""

from __future__ import annotations

import io
import json
import shutil
import signal
from dataclasses import replace

import pytest
import yaml
from rich.console import Console

import voxelocity
from voxelocity.infer.evaluation import pool_runs
from voxelocity.infer.evaluation.page import evaluation_document
from voxelocity.planning import SharedKeys
from voxelocity.report import read_run
from voxelocity.training import folds as folds_module
from voxelocity.training import train, train_folds
from voxelocity.training.resume import SavedRun
from voxelocity_observe.core.errors import (
    DatasetError,
    InputError,
    InterruptedRunError,
    NonFiniteLossError,
    OutputError,
)


@pytest.fixture(scope="module")
def options(tiny_plan):
    return {"overrides": {**tiny_plan, "train.steps": 3}, "device": "cpu", "console": Console(quiet=True)}


@pytest.fixture(scope="module")
def trained(tiny_msd, options, tmp_path_factory):
    """All folds of the tiny data set."""
    return train_folds(voxelocity.open(tiny_msd), tmp_path_factory.mktemp("folds") / "cv", **options)


@pytest.fixture
def copied(trained, tmp_path):
    return shutil.copytree(trained.folder, tmp_path / "cv")


@pytest.fixture
def calls(monkeypatch):
    """Trainings as they are asked for, each of which does what its fold has in `does`."""

    class Calls(list):
        def __init__(self):
            super().__init__()
            self.does = {}

        def __call__(self, cases, request, context):
            self.append({**vars(request), **vars(context)})
            if error := self.does.get(request.fold):
                raise error

    calls = Calls()
    monkeypatch.setattr(folds_module, "run_training", calls)
    return calls


def weights_of(run):
    return json.loads((run / "model.json").read_text())["weights_sha256"]


def test_each_fold_is_the_run_that_the_fold_makes_alone(trained, tiny_msd, options, tmp_path):
    assert list(trained.runs) == [0, 1, 2]
    train(voxelocity.open(tiny_msd), tmp_path / "alone", fold=1, **options)
    assert weights_of(trained.runs[1]) == weights_of(tmp_path / "alone")
    assert weights_of(trained.runs[1]) != weights_of(trained.runs[2])
    assert read_run(trained.runs[1]).scores == read_run(tmp_path / "alone").scores


def test_final_validations_are_pooled_over_every_case(trained):
    assert not trained.failed
    scores = trained.evaluation.scores
    assert [score.case_id for score in scores] == [f"case_{index}" for index in range(6)]
    assert trained.evaluation == pool_runs([trained.folder / f"fold_{fold}" for fold in range(3)])
    figures = json.loads((trained.folder / "evaluation.json").read_text())
    assert figures["num_cases"] == 6
    assert {case["folder"] for case in figures["cases"]} == {str(run) for run in trained.runs.values()}
    assert (trained.folder / "evaluation.html").is_file()


def test_pooled_scores_of_cases_that_a_model_may_have_seen_are_marked(copied, trained):
    runs = [copied / path.name for path in trained.runs.values()]
    case_id, why = read_run(runs[0]).scores[0].case_id, "it does not record its training cases"
    record = yaml.safe_load((runs[0] / "run.yaml").read_text())
    record["dataset"]["exposed"] = {case_id: why}
    (runs[0] / "run.yaml").write_text(yaml.safe_dump(record))
    pooled = pool_runs(runs)
    assert pooled.exposed == {case_id: why}
    document = evaluation_document(replace(pooled, unlearned={}))
    assert "cases, 1 of them marked" in document.verdict
    assert any("may have learned from 1 held-out case" in notice and why in notice for notice in document.notices)
    marked = {case["case_id"]: case["start_may_have_learned_from_it"] for case in document.values["cases"]}
    assert marked == dict.fromkeys(marked, "") | {case_id: why}
    assert f"{case_id} *" in repr(document.sections)


def test_runs_of_repeated_splits_count_a_case_once_each(copied):
    shutil.copytree(copied / "fold_0", copied / "fold_3")
    runs = [copied / f"fold_{fold}" for fold in (0, 1, 3)]
    with pytest.raises(InputError, match="would count twice"):
        pool_runs(runs)
    names = [score.case_id for score in pool_runs(runs, is_repeated=True).scores]
    first = [name.removesuffix(" (fold_0)") for name in names if name.endswith(" (fold_0)")]
    assert first == [name.removesuffix(" (fold_3)") for name in names if name.endswith(" (fold_3)")] != []
    assert len(set(names)) == len(names) == 2 * len(first) + sum(name.endswith(" (fold_1)") for name in names)


def test_finished_folds_are_kept_and_the_others_get_their_plan(copied, tiny_msd, options, calls):
    shutil.rmtree(copied / "fold_1")
    (copied / "fold_2" / "events.jsonl").write_text("")
    saved = SavedRun.read(copied / "fold_0" / "run.yaml")
    with pytest.raises(InputError, match="fold_1"):
        # Nothing was trained, so there is nothing to pool.
        train_folds(voxelocity.open(tiny_msd), copied, **options)
    assert [(call["fold"], call["resume"]) for call in calls] == [(1, False), (2, True)]
    assert calls[0]["shared"] == SharedKeys.of_folds(saved.plan)
    assert calls[0]["shared"].values["data.patch.shape_voxel"] == [16, 16, 16]


def test_time_before_the_first_fold_is_of_its_budget(copied, tiny_msd, options, calls, monkeypatch):
    for fold in (1, 2):
        shutil.rmtree(copied / f"fold_{fold}")
    monkeypatch.setattr(folds_module, "system_clock", iter([100.0, 107.0]).__next__)
    with pytest.raises(InputError, match="fold_1"):
        train_folds(voxelocity.open(tiny_msd), copied, spent_s=3.0, **options)
    assert [call["spent_s"] for call in calls] == [10.0, 0.0]


def test_a_separate_job_takes_over_the_plan_of_another_fold_of_the_same_data(copied, tiny_msd, own_msd, options, calls):
    for fold in (1, 2):
        shutil.rmtree(copied / f"fold_{fold}")
    for source in (tiny_msd, own_msd):
        with pytest.raises(InputError, match="fold_2"):
            train_folds(voxelocity.open(source), copied, folds=(2,), **options)
    assert [call["shared"] is None for call in calls] == [False, True]


def test_a_fold_that_fails_does_not_stop_the_others(copied, tiny_msd, options, calls):
    for fold in (0, 1):
        shutil.rmtree(copied / f"fold_{fold}")
    calls.does = {fold: NonFiniteLossError(f"broke {fold}", case_ids=["a"], step=1) for fold in (0, 1)}
    result = train_folds(voxelocity.open(tiny_msd), copied, **options)
    assert result.failed == {0: "broke 0", 1: "broke 1"}
    assert list(result.runs) == [2]
    assert len(result.evaluation.scores) == 2
    shutil.rmtree(copied / "fold_2")
    calls.does[2] = NonFiniteLossError("broke 2", case_ids=["a"], step=1)
    assert train_folds(voxelocity.open(tiny_msd), copied, **options).evaluation is None


def test_a_fold_that_another_process_finishes_meanwhile_is_taken_as_finished(
    copied, tiny_msd, options, tmp_path, monkeypatch
):
    kept = {fold: (copied / f"fold_{fold}").rename(tmp_path / f"kept_{fold}") for fold in (0, 1, 2)}
    begun = []

    def train(cases, request, context):
        begun.append(request.fold)
        if request.fold == 0:
            # The other process trains fold 0 all the time, and fold 1 is done before this one gets there.
            shutil.copytree(kept[1], copied / "fold_1")
            raise OutputError("train: another process is training into fold_0 now")
        shutil.copytree(kept[2], copied / "fold_2")
        shutil.copytree(kept[0], copied / "fold_0")

    monkeypatch.setattr(folds_module, "run_training", train)
    shown = io.StringIO()
    result = train_folds(voxelocity.open(tiny_msd), copied, **{**options, "console": Console(file=shown, width=400)})
    assert (begun, result.failed, sorted(result.runs)) == ([0, 2], {}, [0, 1, 2])
    assert len(result.evaluation.scores) == 6
    assert "fold 1 is finished" in shown.getvalue()
    assert "fold 0 was finished by another process" in shown.getvalue()


def test_a_fold_of_other_options_that_another_process_begins_meanwhile_is_refused(
    copied, tiny_msd, options, tmp_path, calls
):
    kept = (copied / "fold_2").rename(tmp_path / "kept")
    shutil.rmtree(copied / "fold_1")
    record = yaml.safe_load((kept / "run.yaml").read_text())
    record["plan"]["train"]["steps"] = 4
    (kept / "run.yaml").write_text(yaml.safe_dump(record))

    def make_sinks():
        shutil.copytree(kept, copied / "fold_2")
        return ()

    with pytest.raises(InputError, match=r"fold_2 .*train.steps=3 where 4 is stored"):
        train_folds(voxelocity.open(tiny_msd), copied, make_sinks=make_sinks, **options)
    assert [call["fold"] for call in calls] == [1]


def test_a_fold_that_fails_is_not_finished_by_what_it_was_to_replace(copied, tiny_msd, options, calls):
    (copied / "fold_1" / "events.jsonl").write_text("not an event\nneither is this\n")
    calls.does = {fold: NonFiniteLossError("broke", case_ids=["a"], step=1) for fold in (0, 1, 2)}
    result = train_folds(voxelocity.open(tiny_msd), copied, overwrite=True, **options)
    assert sorted(result.failed) == [0, 1, 2]
    assert [call["overwrite"] for call in calls] == [True] * 3


def test_a_launcher_that_repeats_the_command_keeps_the_folds_of_its_job(copied, tiny_msd, options, calls, monkeypatch):
    (copied / "fold_2" / "events.jsonl").write_text("")
    for fold in (0, 2):
        with (copied / f"fold_{fold}" / "run.yaml").open("a") as record:
            record.write("job: '7'\n")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with pytest.raises(InputError, match="fold_2"):
        # Nothing was trained, so fold 2 is still unfinished.
        train_folds(voxelocity.open(tiny_msd), copied, overwrite=True, **options)
    # Fold 0 is finished, fold 1 is of an earlier job.
    assert [(call["fold"], call["resume"], call["overwrite"]) for call in calls] == [(1, False, True), (2, True, False)]


def test_a_request_to_stop_stops_all_folds(copied, tiny_msd, options, calls):
    shutil.rmtree(copied / "fold_1")
    calls.does = {1: InterruptedRunError("stopped", signal_number=signal.SIGINT)}
    with pytest.raises(InterruptedRunError):
        train_folds(voxelocity.open(tiny_msd), copied, **options)
    assert [call["fold"] for call in calls] == [1]


def test_a_stop_that_came_while_a_fold_wrote_its_report_keeps_the_next_from_beginning(
    copied, tiny_msd, options, monkeypatch
):
    for fold in (0, 1, 2):
        shutil.rmtree(copied / f"fold_{fold}")
    begun = []

    def train(cases, request, context):
        begun.append(request.fold)
        context.stop.signal_number = signal.SIGTERM

    monkeypatch.setattr(folds_module, "run_training", train)
    with pytest.raises(InterruptedRunError, match="stopped after fold 0") as caught:
        train_folds(voxelocity.open(tiny_msd), copied, **options)
    assert (begun, caught.value.signal_number) == ([0], signal.SIGTERM)


def test_a_launcher_that_starts_the_command_again_overwrites_only_what_it_has_not_begun(
    copied, tiny_msd, options, calls, monkeypatch
):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    for fold in (0, 1):
        record = copied / f"fold_{fold}" / "run.yaml"
        record.write_text(f"job: '7'\n{record.read_text()}")
    (copied / "fold_1" / "events.jsonl").write_text("")
    with pytest.raises(InputError, match="fold_1"):
        # It was not really trained.
        train_folds(voxelocity.open(tiny_msd), copied, overwrite=True, **options)
    assert [(call["fold"], call["resume"], call["overwrite"]) for call in calls] == [(1, True, False), (2, False, True)]


def test_folders_of_other_runs_and_folds_without_cases_are_refused_first(copied, tiny_msd, options, calls):
    cases = voxelocity.open(tiny_msd)
    with pytest.raises(InputError, match=r"fold_0 .*train.steps=4 where 3 is stored"):
        train_folds(cases, copied, **{**options, "overrides": {"train.steps": 4}})
    with pytest.raises(DatasetError, match=r"fold 7 holds zero"):
        train_folds(cases, copied, folds=(0, 7), **options)
    with pytest.raises(OutputError, match=r"fold_0 holds a run, but folds need a separate folder"):
        train_folds(cases, copied / "fold_0", **options)
    with pytest.raises(InputError, match=r"fold_0 holds a run that was started from new weights, not from .*fold_1"):
        train_folds(cases, copied, start_from=copied / "fold_1", **options)
    assert not calls
