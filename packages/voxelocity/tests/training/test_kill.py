from __future__ import annotations

import os
import signal

import nibabel as nib
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from shared.forked import run_python
from voxelocity.data.cache import DiskTier
from voxelocity.data.cache.contents import CacheContents
from voxelocity.data.pipeline import PreparedCases
from voxelocity.step import TrainingStep
from voxelocity.training import validation

# Half of an entry is on the disk when the process dies; the entries before it are whole.
_DIE_WHILE_CACHING = """
import os, signal
from voxelocity.data.cache import entry_files
write, num_parts = entry_files.write_all, 0
def die_in_the_middle(descriptor, content):
    global num_parts
    num_parts += len(content) > 1000
    if num_parts < {at}:
        return write(descriptor, content)
    write(descriptor, content[: len(content) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
entry_files.write_all = die_in_the_middle
from voxelocity_observe.cli.main import main
main()
"""
_DIE_WHILE_TRAINING = """
import os, signal
from voxelocity.step import TrainingStep
step, num_steps = TrainingStep.__call__, 0
def die_at_step(training, batch, learning_rate):
    global num_steps
    num_steps += 1
    if num_steps == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(training, batch, learning_rate)
TrainingStep.__call__ = die_at_step
from voxelocity_observe.cli.main import main
main()
"""


def start_and_die(script: str, at: int, arguments: list[str]) -> None:
    """Runs the command in a process of its own, which must die by SIGKILL."""
    # As many threads as this process: another number sums in another order, and the last bits would differ.
    threads = f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"
    ended = run_python(threads + script.format(at=at), arguments)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def arguments_for(data, run, sets, *more):
    return ["train", str(data), "-o", str(run), "--device", "cpu", *sets, *more]


def test_a_kill_while_caching_leaves_nothing_that_misleads_the_next_run(
    voxelocity, own_msd, tiny_sets, tmp_path, monkeypatch
):
    cache = tmp_path / "cache"
    disk = ("--set", "data.cache.tier=disk", "--set", f"data.cache.folder={cache}")
    command = arguments_for(own_msd, tmp_path / "run", tiny_sets, *disk)
    start_and_die(_DIE_WHILE_CACHING, 8, command)
    whole = DiskTier(cache).keys()
    assert 0 < len(whole) < 6
    assert {entry.state for entry in CacheContents(cache).entries(full=True)} == {"whole"}

    ended = voxelocity(*command)
    assert ended.status == 0, ended.err
    assert "resuming the unfinished run" in ended.out
    assert f"{len(whole)} of them already cached" in ended.out
    assert [entry.state for entry in CacheContents(cache).entries(full=True)] == ["whole"] * 6
    assert not [path for path in cache.iterdir() if path.suffix == ".tmp"]

    changed = own_msd / "imagesTr" / "case_0.nii.gz"
    image = np.asarray(nib.load(changed).dataobj)[::-1]
    nib.save(nib.Nifti1Image(image, np.eye(4)), changed)
    prepared = []
    prepare = PreparedCases._prepare

    def noted(cases, index):
        volume = prepare(cases, index)
        prepared.append(volume)
        return volume

    monkeypatch.setattr(PreparedCases, "_prepare", noted)
    again = voxelocity(*command[:3], tmp_path / "second", *command[4:])
    assert again.status == 0, again.err
    (volume,) = prepared
    assert volume.case_id == "case_0"
    expected = (image - image.mean()) / image.std()
    np.testing.assert_allclose(volume.intensities()[0], expected, atol=1e-3)


def test_a_kill_while_training_costs_the_steps_since_the_last_checkpoint(voxelocity, tiny_msd, tiny_sets, tmp_path):
    often = ("--set", "train.validate_every_steps=2", "--set", "train.checkpoint_every_s=1e-9")
    command = arguments_for(tiny_msd, tmp_path / "run", tiny_sets, *often)
    start_and_die(_DIE_WHILE_TRAINING, 6, command)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.suffix == ".pt"]
    assert not (tmp_path / "run" / "report.html").exists()
    ended = voxelocity(*command)
    assert ended.status == 0, ended.err
    whole = voxelocity(*arguments_for(tiny_msd, tmp_path / "whole", tiny_sets, *often))
    assert whole.status == 0, whole.err
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "whole"))
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("number", "status", "name"), [(signal.SIGTERM, 143, "SIGTERM"), (signal.SIGINT, 130, "Ctrl-C")]
)
def test_a_signal_while_training_saves_and_says_how_to_go_on(
    voxelocity, tiny_msd, tiny_sets, tmp_path, monkeypatch, number, status, name
):
    run = tmp_path / "run"
    step, num_steps = TrainingStep.__call__, 0

    def signalled(training, batch, learning_rate):
        nonlocal num_steps
        num_steps += 1
        if num_steps == 3:
            os.kill(os.getpid(), number)
        return step(training, batch, learning_rate)

    monkeypatch.setattr(TrainingStep, "__call__", signalled)
    handlers = [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)]
    ended = voxelocity(*arguments_for(tiny_msd, run, tiny_sets))
    assert ended.status == status
    assert f"stopped by {name} at step 3" in ended.err
    assert "--resume" in ended.err
    assert "Traceback" not in ended.err
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_000000003.pt"]
    assert [signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)] == handlers
    resumed = voxelocity(*arguments_for(tiny_msd, run, [], "--resume"))
    assert resumed.status == 0, resumed.err
    assert num_steps == 6


def test_a_signal_while_caching_stops_between_two_cases(voxelocity, tiny_msd, tiny_sets, tmp_path, monkeypatch):
    prepare = PreparedCases._prepare

    def signalled(cases, index):
        os.kill(os.getpid(), signal.SIGTERM)
        return prepare(cases, index)

    command = arguments_for(tiny_msd, tmp_path / "run", tiny_sets)
    with monkeypatch.context() as patched:
        patched.setattr(PreparedCases, "_prepare", signalled)
        ended = voxelocity(*command)
    assert ended.status == 143
    assert "stopped by SIGTERM" in ended.err
    assert "at step" not in ended.err
    assert voxelocity(*command, "--resume").status == 0


def test_a_signal_in_the_final_validation_costs_no_training_step(
    voxelocity, tiny_msd, tiny_sets, tmp_path, monkeypatch
):
    score = validation.score_cases

    def signalled(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        yield from score(*args, **options)

    command = arguments_for(tiny_msd, tmp_path / "run", tiny_sets)
    with monkeypatch.context() as patched:
        patched.setattr(validation, "score_cases", signalled)
        ended = voxelocity(*command)
    assert ended.status == 143
    assert not (tmp_path / "run" / "scores.json").exists()
    # No further step may be asked for.
    monkeypatch.setattr(TrainingStep, "__call__", None)
    assert voxelocity(*command, "--resume").status == 0
    assert (tmp_path / "run" / "scores.json").exists()
