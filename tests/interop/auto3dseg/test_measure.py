"""The processes of trials, with MONAI's own templates and small networks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import yaml
from rich.console import Console

from voxelocity.interop.auto3dseg.measure import AlgorithmTask, _Quickened
from voxelocity.interop.auto3dseg.templates import DATA_ON, PATCHES, WINDOWS, OwnSettings, written_keys
from voxelocity.tuning.tune import TrialScale, trial_environ

SHAPE = (48, 44, 40)
SETTINGS = {PATCHES: 3, WINDOWS: 2, DATA_ON: "cpu"}


def run(task, folder):
    file, answer = folder / "task", folder / "answer"
    file.write_text(task.to_json())
    done = subprocess.run(
        [sys.executable, "-m", "voxelocity.interop.auto3dseg.measure", file, answer],
        env={**trial_environ(), "PATH": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(answer.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["segresnet", "segresnet2d", "dints", "swinunetr"])
def test_each_template_says_its_own_settings_and_measures_others(work, tmp_path, name):
    before = {path: path.read_bytes() for path in (work / f"{name}_0").rglob("*") if path.is_file()}
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
    found = run(replace(task, settings=SETTINGS, own=own), tmp_path)["measurements"]
    assert len(found["images_per_s"]) == 2
    assert min(found["images_per_s"] + found["validation_s"]) > 0.0
    after = {path: path.read_bytes() for path in (work / f"{name}_0").rglob("*") if path.is_file()}
    assert {path: content for path, content in after.items() if "__pycache__" not in path.parts} == before


# Notes the shapes that the network is called with in the template's own training, then leaves it.
_SPY = """
import json, sys, torch
sys.path.insert(0, sys.argv[1] + "/scripts")
import SCRIPT as module
made = module.CLASS.setup_model
def spied(self, *args, **options):
    model = made(self, *args, **options)
    model.register_forward_pre_hook(lambda net, given: print("shape", net.training, len(given[0]), flush=True))
    return model
module.CLASS.setup_model = spied
keys = {"num_epochs": 3, "num_warmup_epochs": 1, "num_workers": 0, "fork": False, "num_epochs_per_validation": 1}
module.CLASS([sys.argv[1] + "/configs/hyper_parameters.yaml"], keys).run()
"""


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["segresnet", "segresnet2d"])
def test_a_training_steps_and_validates_in_the_sizes_that_were_written(work, tmp_path, name):
    pytest.importorskip("tensorboard")
    file = work / f"{name}_0" / "configs" / "hyper_parameters.yaml"
    own = OwnSettings(
        patches=1, windows=1, data_on="cpu", patches_per_case=3, num_cases=2, num_validations=2,
        fixed={"roi_size": [32, 32, 16]},
    )  # fmt: skip
    values = {**yaml.safe_load(file.read_text()), **written_keys(name, own, SETTINGS, has_gpu=False)}
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    script, made = ("segmenter_2d", "Segmenter2D") if name == "segresnet2d" else ("segmenter", "Segmenter")
    code = _SPY.replace("SCRIPT", script).replace("CLASS", made)
    done = subprocess.run(
        [sys.executable, "-c", code, file.parents[1]], env={**trial_environ(), "PATH": ""}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    shapes = {tuple(line.split()[1:]) for line in done.stdout.splitlines() if line.startswith("shape")}
    assert ("True", "3") in shapes, done.stderr[-2000:]
    assert ("False", "2") in shapes
    assert {size for training, size in shapes if training == "True"} == {"3"}


@pytest.mark.nightly
def test_a_search_stays_within_the_memory_that_it_was_given(work):
    from voxelocity.interop.auto3dseg import customize

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
