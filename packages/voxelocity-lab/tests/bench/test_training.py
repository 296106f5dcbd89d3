from pathlib import Path

import pytest

from voxelocity.report import RunFacts
from voxelocity.report.records import DatasetFacts, StepRecord
from voxelocity_lab.bench import training
from voxelocity_lab.bench.phantom import BenchFolders, PhantomSet
from voxelocity_lab.bench.training import TrainingScenario, step_ms, waiting_percent


def stretch(num_steps, seconds, wait_s=0.0):
    return StepRecord(
        time_s=0.0, step=0, epoch=0, loss=1.0, learning_rate=0.1, num_steps=num_steps, num_images=0, seconds=seconds,
        wait_s=wait_s,
    )  # fmt: skip


def facts(*steps):
    return RunFacts(folder=Path("run"), status="finished", dataset=DatasetFacts(name="x"), plan={}, steps=steps)


def test_a_step_is_timed_without_the_stretch_in_which_the_machine_warms_up():
    assert step_ms(facts(stretch(1, 100.0), stretch(10, 1.0), stretch(30, 1.0))) == pytest.approx(50.0)
    assert step_ms(facts(stretch(4, 1.0))) == pytest.approx(250.0), "there is no other"


def test_waiting_is_counted_from_the_first_stretch_on():
    assert waiting_percent(facts(stretch(1, 3.0, wait_s=1.0), stretch(9, 7.0))) == pytest.approx(10.0)


def test_each_round_trains_once_and_times_the_same_step_with_our_code_and_with_torchs(tmp_path, monkeypatch):
    calls = []

    def python(*words):
        calls.append([str(word) for word in words])
        return "20.0\n"

    monkeypatch.setattr(training, "run_python", python)
    monkeypatch.setattr(training, "read_run", lambda folder: facts(stretch(1, 1.0), stretch(40, 1.0, wait_s=0.02)))
    phantoms = PhantomSet(kind="ct", shape=(16, 16, 12), num_cases=2)
    scenario = TrainingScenario(cases=phantoms, repeats=3, resident_s=2.5)
    step, waiting = training.run(scenario, BenchFolders(work=tmp_path))
    assert [figure.values for figure in step.figures] == [(25.0,) * 3, (20.0,) * 3, (20.0,) * 3]
    assert [figure.values for figure in waiting.figures] == [pytest.approx((1.0,) * 3)]
    trained, timed = ([words for words in calls if words[0] == first] for first in ("-m", "-c"))
    assert len(trained) == 3
    assert [words[4:] for words in timed].count([]) == 3
    assert [words[4:] for words in timed].count(["fused_norm", "fused_loss", "keep_freed_memory"]) == 3
    assert all(words[words.index("-o") + 1] == timed[0][2] for words in trained)
    assert trained[0][-2:] == ["--time-budget", "60s"]
