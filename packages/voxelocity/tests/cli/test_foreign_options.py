"""Options of other tools: what is proposed in their place works."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import voxelocity as package
from shared.recipe_call import call_of
from voxelocity.planning import read_overrides
from voxelocity_lab.recipes.pathology import settings as pathology
from voxelocity_lab.recipes.tractography import settings as tracts
from voxelocity_observe.cli.foreign_options import instead_of
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.core.plain import parse_yaml

OPTIONS = (
    "--steps", "--max_iterations", "--batch-size", "--lr", "--num-workers", "--fp16", "--patch-size", "--roi_size",
    "--pixdim", "--loss", "--arch", "--val_interval", "--clip-grad", "--save-every",
)  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_the_key_that_is_proposed_for_an_option_is_one_of_the_plan(voxelocity, tiny_msd, option):
    told = voxelocity("plan", tiny_msd, option, "3")
    assert told.status == 2
    text = " ".join(told.err.replace("\u2502", " ").split())
    assert f"No such option: {option}. Write --set " in text
    (key, value) = re.search(r"--set '?([a-z_.]+)=([\w.]+|\[[\d,]+\])", text).groups()
    read_overrides({key: parse_yaml(value)})


def test_other_typing_errors_get_no_such_hint(voxelocity, tiny_msd):
    assert "Write" not in voxelocity("plan", tiny_msd, "--seeed", "3").err
    assert "Write" not in voxelocity("predict", tiny_msd, "--epochs", "3").err
    assert "voxelocity launch -n 2 train" in instead_of("--gpus", "train")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("train DATA -o x -bs 4", "No such option: -bs. Write --set data.batch_size=4"),
        ("train DATA -o x -tr Trainer", "No such option: -tr. Write `voxelocity plan DATASET`"),
        ("train DATA -o x -f 0", "Write --fold 0, or --folds all"),
        ("train 4 3d_fullres 0", "Write one data set: voxelocity train DATASET -o RUN"),
        ("predict -i DATA -o x -d 4", "Write the scans without an option: voxelocity predict RUN INPUT -o OUT"),
        ("predict RUN DATA -o x --folds 0", "voxelocity predict RUN/fold_0 RUN/fold_1 INPUT -o OUT"),
        ("predict RUN DATA -o x --fast", "Write --runtime auto"),
        ("predict RUN DATA -o x --step_size 0.5", "Write --set window.overlap=0.5 when you train"),
        ("predict RUN DATA -o x --num_workers 3", "Write taskset"),
        ("evaluate --pred x --gt DATA -o x", "Write folders without options: voxelocity evaluate PREDICTIONS TRUTH"),
        ("tune DATA --lr 0.1", "Write --set optimizer.learning_rate=0.01"),
        ("diagnose --steps 30 -- python x.py", "Write --seconds 60"),
        ("bench patches --output b", "Write -o FOLDER"),
        (
            "recipe splen train DATA -o x",
            "'splen' is not one of 'brain', 'pathology', 'spleen', 'tractography'; did you",
        ),
        ("inference x", "No such command 'inference'. Write voxelocity predict RUN INPUT -o OUT"),
        ("nnUNetv2_train 4", "Write voxelocity train DATASET -o RUN"),
        ("trian", "Did you mean 'train'?"),
        ("train DATA_ -o x", "does not exist (did you mean DATA?)"),
        ("predict DATA_ DATA -o x", "does not exist (did you mean DATA?)"),
        ("report DATA_", "does not exist (did you mean DATA?)"),
        ("evaluate DATA_ DATA -o x", "does not exist (did you mean DATA?)"),
    ],
)
def test_what_users_of_other_tools_type_is_answered_with_what_to_write(voxelocity, tiny_msd, tmp_path, words, wanted):
    told = voxelocity(*words.replace("DATA", str(tiny_msd)).replace("-o x", f"-o {tmp_path / 'x'}").split())
    assert told.status == 2
    assert wanted.replace("DATA?", f"{tiny_msd}?") in " ".join(told.err.split())
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("command", ["train", "plan", "tune", "recipe", "predict"])
def test_options_for_a_gpu_are_the_device(voxelocity, command):
    text = instead_of("--gpu", command)
    assert text == "--device cuda, or cpu"
    assert "--device" in voxelocity(command, "--help").out
    assert "-o" in voxelocity(command, "--help").out or command == "plan"


def test_epochs_are_an_option_of_its_own_and_other_names_of_it_lead_there(voxelocity, tiny_msd):
    assert instead_of("--max_epochs", "train").startswith("--epochs 100")
    planned = voxelocity("plan", tiny_msd, "--epochs", "3", "--device", "cpu", "--set", "data.batch_size=2", "--json")
    record = json.loads(planned.succeeded().out)
    assert record["plan"]["train"]["steps"] == math.ceil(3 * record["dataset"]["num_training"] / 2)
    (choice,) = [choice for choice in record["choices"] if choice["key"] == "train.steps"]
    assert choice["reason"] == "3 passes over the training cases: --epochs"
    refused = voxelocity("plan", tiny_msd, "--epochs", "3", "--set", "train.steps=5")
    assert refused.status == 2
    assert "--epochs 3: train.steps=5 gives the length too" in refused.err


def test_the_other_word_for_predict_is_understood(voxelocity, tmp_path):
    ended = voxelocity("recipe", "spleen", "infer", tmp_path, "-o", tmp_path / "run")
    assert ended.status == 2
    assert "Write predict instead of infer" in " ".join(ended.err.split())
    assert "Write" not in voxelocity("recipe", "spleen", "nonsense", tmp_path, "-o", tmp_path / "run").err


@pytest.mark.parametrize(("recipe", "settings"), [("pathology", pathology.settings), ("tractography", tracts.settings)])
@pytest.mark.parametrize("option", ["--epochs", "--batch-size", "--lr", "--amp"])
def test_recipes_have_keys_of_their_own(recipe, settings, option):
    text = instead_of(option, "recipe", ("train", recipe))
    (key, value) = re.search(r"--set ([a-z_.]+)=([\w.]+)", text).groups()
    settings(call_of(Path(), Path(), overrides={key: float(value) if value.replace(".", "").isdecimal() else value}))


@pytest.mark.parametrize("option", ["--local-rank=1", "--local_rank=1"])
def test_the_local_rank_that_torch_distributed_launch_writes_before_the_command_is_taken(voxelocity, option):
    assert voxelocity(option, "--version").succeeded().out == f"voxelocity {package.__version__}\n"


@pytest.mark.nightly
def test_ranks_that_torch_distributed_launch_starts_know_where_they_are():
    command = [sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2", "-m", "voxelocity", "--version"]
    environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"voxelocity {package.__version__}"] * 2
