"""Trainings and caches on a Ray cluster have the results of one process."""

import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, safe_open

import voxelocity as vx
from shared.limits import HANGS_S
from voxelocity.training import ray as ray_here
from voxelocity.training.building import build_cache, cache_job
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.core.events import read_events

# Ray's, at its own import.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this machine with two cores."""
    ray = pytest.importorskip("ray")
    ray.init(address="local", num_cpus=2, log_to_driver=False, include_dashboard=False, logging_level="error")
    yield ray
    ray.shutdown()


def content(path):
    """An entry's tensors and its record without the time at which it was made."""
    with safe_open(path, "pt") as file:
        record = json.loads(file.metadata()["record"])
    del record["created_s"]
    return record, {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


def job_in(folder, dataset):
    return cache_job(vx.open(dataset), device="cpu", overrides={"data.cache.folder": str(folder)})


def test_a_cluster_that_is_not_there_is_named(tiny_msd, tmp_path, monkeypatch):
    # Found out before Ray itself is asked.
    monkeypatch.setattr(ray_here, "_ray", lambda: SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(ConfigError, match=r"no cluster at 127\.0\.0\.1:9"):
        ray_here.build_cache(job_in(tmp_path, tiny_msd), address="127.0.0.1:9", console=Console(quiet=True))


@pytest.mark.nightly
def test_a_cluster_prepares_the_cache_of_one_process(cluster, tiny_msd, tmp_path):
    console = Console(quiet=True)
    here = build_cache(job_in(tmp_path / "here", tiny_msd), console=console)
    there = ray_here.build_cache(job_in(tmp_path / "there", tiny_msd), address="auto", console=console)
    assert (there.num_prepared, there.num_kept, there.num_bytes) == (6, 6, here.num_bytes)
    names = sorted(path.name for path in (tmp_path / "here").glob("*.safetensors"))
    assert names == sorted(path.name for path in (tmp_path / "there").glob("*.safetensors"))
    assert len(names) == 6
    for name in names:
        assert content(tmp_path / "here" / name) == content(tmp_path / "there" / name)
    again = ray_here.build_cache(job_in(tmp_path / "there", tiny_msd), address="auto", console=console)
    assert (again.num_found, again.num_prepared) == (6, 0)


@pytest.mark.nightly
def test_workers_are_the_ranks_of_one_training(cluster, tiny_msd, tiny_plan, tmp_path):
    overrides = {**tiny_plan, "data.batch_size": 3, "optimizer.name": "sgd"}
    vx.train(vx.open(tiny_msd), tmp_path / "one", device="cpu", overrides=overrides, console=Console(quiet=True))
    result = ray_here.trainer(tiny_msd, tmp_path / "two", num_workers=2, overrides=overrides).fit()
    assert result.error is None
    assert result.return_value["step"] == 6
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=0.0, atol=1e-4)
    assert (tmp_path / "two" / "events-rank1.jsonl").is_file()


@pytest.mark.nightly
def test_a_worker_that_dies_costs_the_steps_since_the_last_checkpoint(cluster, tiny_msd, tiny_plan, tmp_path):
    out = tmp_path / "run"
    overrides = {**tiny_plan, "train.steps": 600, "train.checkpoint_every_s": 0.1, "train.validation_share": 0.0}
    trainer = ray_here.trainer(tiny_msd, out, num_workers=2, max_failures=1, overrides=overrides)
    killer = cluster.remote(num_cpus=0)(_kill_a_rank).remote(str(out / "checkpoints"))
    result = trainer.fit()
    assert cluster.get(killer), "a worker was killed"
    assert result.return_value["step"] == 600
    begun = [event for event in read_events(out / "events.jsonl") if event["event"] == "run_started"]
    assert len(begun) == 2


def _kill_a_rank(checkpoints):
    """Kills one worker, once there is a checkpoint."""
    end_s = time.monotonic() + HANGS_S
    while time.monotonic() < end_s:
        if os.path.isdir(checkpoints) and any(name.endswith(".pt") for name in os.listdir(checkpoints)):
            for process in os.listdir("/proc"):
                if process.isdigit() and "RayTrainWorker" in _name(process):
                    os.kill(int(process), signal.SIGKILL)
                    return True
        time.sleep(0.05)
    return False


def _name(process):
    try:
        with open(f"/proc/{process}/cmdline", encoding="utf8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def test_what_ray_cannot_do_is_refused(monkeypatch, tiny_msd, tmp_path):
    job = cache_job(
        vx.open(tiny_msd), device="cpu", overrides={"data.cache.folder": str(tmp_path), "data.cache.tier": "lmdb"}
    )
    with pytest.raises(ConfigError, match="several machines cannot write one file"):
        ray_here.build_cache(job, address="local", console=Console(quiet=True))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        ConfigError, match="package ray is missing; install it with `pip install 'voxelocity\\[ray\\]'`"
    ):
        ray_here.trainer(tiny_msd, tmp_path / "run", num_workers=2)


def test_more_time_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"launch -n 2 train --resume .*run --time-budget \+5m$"):
        ray_here.trainer(tmp_path, tmp_path / "run", num_workers=2, time_budget="+5m")
    assert not list(tmp_path.iterdir())


@pytest.mark.nightly
def test_options_that_have_no_meaning_on_a_cluster_are_refused(cluster, tiny_msd, tmp_path):
    with pytest.raises(ConfigError, match=r"the option overwrite of voxelocity\.train cannot be used here"):
        ray_here.trainer(tiny_msd, tmp_path / "run", num_workers=2, overwrite=True)
