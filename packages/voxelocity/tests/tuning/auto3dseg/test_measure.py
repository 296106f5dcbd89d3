"""The processes of trials, with MONAI's own templates and small networks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
import yaml
from monai.bundle import ConfigParser
from rich.console import Console

from auto3dseg import train_epochs
from shared.forked import run_python
from voxelocity.tuning.auto3dseg.measure import _Quickened
from voxelocity.tuning.auto3dseg.steps import AlgorithmTask
from voxelocity.tuning.auto3dseg.templates import DATA_ON, PATCHES, WINDOWS, OwnSettings, written_keys
from voxelocity.tuning.task import TrialScale
from voxelocity.tuning.trial import trial_variables

SHAPE = (48, 44, 40)
SETTINGS = {PATCHES: 3, WINDOWS: 2, DATA_ON: "cpu"}


def run(task, folder):
    file, answer = folder / "task", folder / "answer"
    file.write_text(task.to_json())
    code = "import runpy\nrunpy.run_module('voxelocity.tuning.auto3dseg.measure', run_name='__main__')"
    done = run_python(code, [file, answer], {**trial_variables(), "PATH": ""})
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text())


def _read_files(folder):
    """Of what Python compiles for itself, some versions write more than others."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path: path.read_bytes() for path in found}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "segresnet",
        "dints",
        pytest.param("segresnet2d", marks=pytest.mark.nightly),
        pytest.param("swinunetr", marks=pytest.mark.nightly),
    ],
)
def test_each_template_says_its_own_settings_and_measures_others(work, tmp_path, name):
    before = _read_files(work / f"{name}_0")
    task = AlgorithmTask(
        name=name, folder=str(work / f"{name}_0"), device="cpu", case_shape=SHAPE, window_s=0.01, num_windows=2,
        validation_s=0.1,
    )  # fmt: skip
    own = OwnSettings(**run(task, tmp_path)["about"]["own"])
    # Two of four cases are held out.
    assert own.num_cases == 2
    assert own.data_on == "cpu"
    # What dints takes without a GPU, for which it assumes 16 GB; what swinunetr was filled with for one of 16 GB.
    assert own.patches == {"segresnet": 1, "segresnet2d": 1, "dints": 5, "swinunetr": 2}[name]
    answer = run(replace(task, settings=SETTINGS, own=own), tmp_path)
    # What the process of a validation's loader keeps a copy of.
    assert (answer["about"]["unseen_host_bytes"] > 2**24) == name.startswith("segresnet")
    found = answer["measurements"]
    assert len(found["images_per_s"]) == 2
    assert min(found["images_per_s"] + found["validation_s"]) > 0.0
    assert _read_files(work / f"{name}_0") == before


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["segresnet", "segresnet2d", "dints", "swinunetr"])
def test_the_templates_own_training_steps_and_validates_in_the_sizes_that_were_written(work, name):
    pytest.importorskip("tensorboard")
    pytest.importorskip("mlflow")
    file = work / f"{name}_0" / "configs" / "hyper_parameters.yaml"
    own = OwnSettings(
        patches=1, windows=1, data_on="cpu", patches_per_case=3, num_cases=2, num_validations=2, epoch_crops=2,
        images_per_batch=2, fixed={"roi_size": [32, 32, 16]},
    )  # fmt: skip
    values = ConfigParser(yaml.safe_load(file.read_text()), globals=False)
    for key, value in written_keys(name, own, SETTINGS, has_gpu=False).items():
        values[key] = value
    file.write_text(yaml.safe_dump(values.get(), sort_keys=False))
    found = train_epochs(work, name)
    assert found["kind"] == "finished", found["reason"]
    assert found["patches"] == 3 * found["steps"] > 0
    assert found["windows"] == 2


@pytest.mark.nightly
def test_a_search_stays_within_the_memory_that_it_was_given(work):
    from voxelocity.tuning.auto3dseg import customize

    limit = 1_200_000_000
    found = customize(
        work, "segresnet", {"segresnet": {"num_trials": 6, "range_num_images_per_batch": [1, 4096]}},
        memory_limit_bytes=limit, scale=TrialScale(window_s=0.1, num_windows=2, validation_s=0.5),
        console=Console(quiet=True),
    )["segresnet_0"]  # fmt: skip
    kinds = {trial.settings[PATCHES]: trial.outcome.kind for trial in found.study.trials}
    assert kinds[4096] == "out_of_memory"
    assert found.study.winner is not None
    assert all(trial.outcome.peak_host_bytes <= limit for trial in found.study.winner_trials)


def test_a_long_validation_is_estimated_from_the_windows_that_were_computed():
    seconds = iter(range(100))
    calls = []

    def network(windows):
        calls.append(len(windows))
        return [2.0 * windows, windows]

    # Each look at the clock takes a second, so each computed batch does.
    quick = _Quickened(network, 1.5, lambda: None, lambda: float(next(seconds)))
    answers = [quick(torch.full((size, 1), float(number))) for number, size in enumerate((2, 2, 2, 2, 1))]
    assert calls == [2, 2]
    assert [len(answer[0]) for answer in answers] == [2, 2, 2, 2, 1]
    assert answers[-1][0].tolist() == [[2.0]]
    # Of nine windows four took 2 of 5 s.
    assert quick.full_seconds(5.0) == pytest.approx(5.0 + 2.0 * (9 / 4 - 1.0))
