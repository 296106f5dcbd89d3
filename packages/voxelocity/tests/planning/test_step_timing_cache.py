import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shared.plan_facts import machine
from voxelocity.planning import step_timing
from voxelocity.planning.step_timing import CachedStepTimer, StepTask, StepVariant
from voxelocity.step import BackendConfig, LossConfig, NetworkConfig, OptimizerConfig, PrecisionConfig
from voxelocity_observe.core.interleaved_timing import Times

MACHINE = machine()
TASK = StepTask(
    network=NetworkConfig(name="unet", widths=(4, 8), strides=((2, 2, 2),)),
    loss=LossConfig(),
    optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3),
    num_channels=1,
    num_classes=2,
    patch_voxel=(8, 8, 8),
    batch_size=2,
)
WAYS = {
    name: StepVariant(precision=PrecisionConfig(compute="float32", channels_last=last), backend=BackendConfig())
    for name, last in (("a", False), ("b", True))
}
FOUND = Times(seconds={"a": (0.3, 0.2, 0.25), "b": (0.1, 0.1, 0.125)})


@pytest.fixture
def measured(monkeypatch):
    """One entry a measurement; the times are made up."""
    calls = []

    def time_steps(task, ways, device, *, limit_s, clock):
        calls.append(limit_s)
        return FOUND

    monkeypatch.setattr(step_timing, "time_steps", time_steps)
    return calls


def timer(folder, **changes):
    return CachedStepTimer(**{"folder": folder, "machine": MACHINE, **changes})


def the_file(folder):
    (path,) = Path(folder).iterdir()
    return path


def test_a_step_is_measured_once(tmp_path, measured):
    first = timer(tmp_path / "measured")(TASK, WAYS, limit_s=6.0)
    assert first == timer(tmp_path / "measured")(TASK, WAYS, limit_s=1.0) == FOUND
    assert measured == [6.0]


def test_the_file_says_in_words_what_was_measured(tmp_path, measured):
    timer(tmp_path)(TASK, WAYS, limit_s=6.0)
    record = json.loads(the_file(tmp_path).read_text())
    assert record["machine"]["torch"] == torch.__version__
    assert record["machine"]["num_threads"] == torch.get_num_threads()
    assert record["step"]["patch_voxel"] == [8, 8, 8]
    assert record["seconds"] == {"a": [0.3, 0.2, 0.25], "b": [0.1, 0.1, 0.125]}


def test_another_step_machine_or_torch_is_measured_again(tmp_path, measured, monkeypatch):
    timer(tmp_path)(TASK, WAYS, limit_s=6.0)
    timer(tmp_path)(replace(TASK, patch_voxel=(16, 8, 8)), WAYS, limit_s=6.0)
    timer(tmp_path)(TASK, dict(reversed(WAYS.items())) | {"c": WAYS["a"]}, limit_s=6.0)
    for changes in ({"num_cpus": 4}, {"device": "cuda", "device_name": "H100"}):
        timer(tmp_path, machine=replace(MACHINE, **changes))(TASK, WAYS, limit_s=6.0)
    monkeypatch.setattr(torch, "__version__", "9.9")
    timer(tmp_path)(TASK, WAYS, limit_s=6.0)
    assert len(measured) == len(list(tmp_path.iterdir())) == 6


def test_what_is_kept_can_be_measured_again(tmp_path, measured):
    timer(tmp_path)(TASK, WAYS, limit_s=6.0)
    path = the_file(tmp_path)
    path.write_text(path.read_text().replace("0.3", "0.9"))
    assert timer(tmp_path, refresh=True)(TASK, WAYS, limit_s=6.0) == FOUND
    assert timer(tmp_path)(TASK, WAYS, limit_s=6.0) == FOUND, "and the new one is kept in its place"
    assert len(measured) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format_version": 0}',
        "seconds:{}",
        'seconds:{"a": [0.3, 0.2, 0.25], "b": [0.1, 0.1]}',
        'seconds:{"a": [0.3, 0.2, -0.25], "b": [0.1, 0.1, 0.1]}',
        'seconds:{"a": [0.3, 0.2, 0.25], "z": [0.1, 0.1, 0.1]}',
        'seconds:{"a": [0.3, 0.2], "b": [0.1, 0.1]}',
        'seconds:{"a": [0.3, 0.2, "x"], "b": [0.1, 0.1, 0.1]}',
    ],
)
def test_a_damaged_file_is_measured_again_and_mended(tmp_path, measured, content):
    timer(tmp_path)(TASK, WAYS, limit_s=6.0)
    path = the_file(tmp_path)
    if content.startswith("seconds:"):
        content = json.dumps(json.loads(path.read_text()) | {"seconds": json.loads(content.removeprefix("seconds:"))})
    path.write_text(content)
    assert timer(tmp_path)(TASK, WAYS, limit_s=6.0) == FOUND
    assert timer(tmp_path)(TASK, WAYS, limit_s=6.0) == FOUND
    assert len(measured) == 2


def test_a_way_that_was_left_out_for_want_of_time_may_lack(tmp_path, measured):
    ways = {**WAYS, "c": replace(WAYS["a"], backend=BackendConfig(tf32=False))}
    assert timer(tmp_path)(TASK, ways, limit_s=6.0) == timer(tmp_path)(TASK, ways, limit_s=6.0) == FOUND
    assert len(measured) == 1


def test_a_folder_that_takes_no_file_costs_a_measurement_and_no_plan(tmp_path, measured):
    (tmp_path / "measured").write_text("a file where a folder would be")
    assert timer(tmp_path / "measured")(TASK, WAYS, limit_s=6.0) == FOUND
    assert timer(tmp_path / "measured")(TASK, WAYS, limit_s=6.0) == FOUND
    assert len(measured) == 2


def test_what_could_not_be_timed_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(step_timing, "time_steps", lambda *_, **__: Times(seconds={}, why_not="too long"))
    assert timer(tmp_path)(TASK, WAYS, limit_s=6.0).why_not == "too long"
    assert list(tmp_path.iterdir()) == []
