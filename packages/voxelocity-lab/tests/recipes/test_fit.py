"""The training that recipes share, on a line through points: where it ends, what a signal leaves, what it refuses."""

import importlib
import io
import itertools
import os
import shlex
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import voxelocity_lab.recipes.fit as recipe_fit
from shared.recipe_call import call_of
from voxelocity.core.batch import Batch
from voxelocity.step import BackendConfig, OptimizerConfig, PrecisionConfig, TrainingStep
from voxelocity.training import open_session
from voxelocity_lab.recipes import segmentation
from voxelocity_lab.recipes.fit import FitConfig, FitJob, fit
from voxelocity_lab.recipes.run import open_run
from voxelocity_lab.recipes.spleen.recipe import CONTEST
from voxelocity_observe.core.errors import ConfigError, InterruptedRunError, NonFiniteLossError
from voxelocity_observe.core.events import read_events
from voxelocity_observe.document.blocks import Table
from voxelocity_observe.monitor.samples import HostSample, Sample

CPU = torch.device("cpu")


def make_batch(step):
    image = torch.rand(4, 1, 2, generator=torch.Generator().manual_seed(step))
    return Batch(image=image, label=2.0 * image, draws=(), regions=(), step=step)


def mean_square(answer, label):
    return (answer - label).square().mean()


def train(
    out,
    make=make_batch,
    *,
    resume=False,
    overwrite=False,
    clock=None,
    loss=mean_square,
    job_values=None,
    sinks=(),
    console=None,
    compute="float32",
    **values,
):
    config = FitConfig(
        batch_size=4, optimizer=OptimizerConfig(name="adamw", learning_rate=0.1), **{"steps": 20, **values}
    )
    torch.manual_seed(0)
    network = torch.nn.Linear(2, 2)
    options = {} if clock is None else {"clock": clock}
    call = call_of(out, out, resume=resume, overwrite=overwrite, sinks=sinks, console=console or Console(quiet=True))
    with open_run(call, out, {"of": "a line"}, **options) as run:
        step = TrainingStep(
            network,
            loss,
            optimizer=config.optimizer,
            precision=PrecisionConfig(compute=compute),
            device=CPU,
            world=run.world,
        )
        job = FitJob(
            step=step,
            make_batch=lambda number, share: make(number),
            config=config,
            **{"num_items": 8, "num_threads": 0, "unit": "items", **(job_values or {})},
        )
        state = fit(run, job)
    return state, network.state_dict()


def test_a_signal_leaves_a_state_that_continues_exactly(tmp_path):
    _, wanted = train(tmp_path / "whole")

    def stopped(step):
        if step == 11:
            os.kill(os.getpid(), signal.SIGTERM)
        return make_batch(step)

    with pytest.raises(
        InterruptedRunError, match=r"stopped at step 12 .* its state saved .* --resume continues"
    ) as caught:
        train(tmp_path / "run", stopped)
    assert caught.value.signal_number == signal.SIGTERM
    state, found = train(tmp_path / "run", resume=True)
    assert state.step == 20
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [event["is_resumed"] for event in events if event["event"] == "run_started"] == [False, True]
    assert sum(event["num_steps"] for event in events if event["event"] == "steps") == 20


def test_a_launcher_that_repeats_the_command_overwrites_only_what_another_job_has_left(tmp_path, monkeypatch):
    def begun():
        events = read_events(tmp_path / "events.jsonl")
        return [event["is_resumed"] for event in events if event["event"] == "run_started"]

    train(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    # The first start ended before it came to overwrite anything.
    train(tmp_path, overwrite=True)
    assert begun() == [False]
    train(tmp_path, overwrite=True)
    assert begun() == [False, True]


def test_a_run_of_another_kind_is_not_proposed_to_be_continued(tmp_path):
    (tmp_path / "run.yaml").write_text("recipe: another\n")
    for resume in (False, True):
        with pytest.raises(ConfigError, match="holds another kind of run; replace it with --overwrite, or choose"):
            train(tmp_path, resume=resume)


def test_the_switches_of_a_gpu_are_those_of_a_training_and_put_back_after_it(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(recipe_fit, "set_backend", lambda backend, device: asked.append((backend, device)))
    train(tmp_path / "run", steps=2, backend={"tf32": False, "fused_loss": False})
    assert asked == [(BackendConfig(tf32=False, fused_loss=False), CPU)]


def test_a_time_budget_ends_the_training_and_is_said(tmp_path):
    seconds = [0.0]

    def clock():
        return seconds[0]

    def slow(step):
        seconds[0] += 1.0
        return make_batch(step)

    console = Console(file=io.StringIO(), width=200)
    state, _ = train(tmp_path, slow, clock=clock, console=console, steps=0, time_budget_s=30.0)
    assert state.step == 30
    assert f"trained 30 steps in 30 s, into {tmp_path}" in console.file.getvalue()
    assert state.trained_s == pytest.approx(30.0)


def test_a_budget_spent_before_the_first_step_is_said_and_marks_the_training(tmp_path):
    times = itertools.chain([0.0], itertools.count(50.0, 0.1))
    fitted, _ = train(tmp_path / "late", clock=lambda: next(times), steps=0, time_budget_s=30.0)
    assert fitted.step == 0
    assert "no training step" in fitted.unlearned
    (warning,) = [event for event in read_events(tmp_path / "late" / "events.jsonl") if event["event"] == "warning"]
    assert "has no score" in warning["text"]
    assert "Start-up and preparation took most of the time budget of 30 s" in warning["text"]
    assert "--overwrite" in warning["text"]
    short, _ = train(tmp_path / "short", steps=3)
    assert "only 3 training steps" in short.unlearned
    whole, _ = train(tmp_path / "whole")
    assert whole.unlearned == ""
    assert not [event for event in read_events(tmp_path / "whole" / "events.jsonl") if event["event"] == "warning"]


def test_a_loss_that_is_not_finite_ends_the_training_with_its_step(tmp_path):
    def bad(step):
        batch = make_batch(step)
        return batch.with_(image=batch.image * float("nan")) if step == 7 else batch

    with pytest.raises(
        NonFiniteLossError, match=r"the loss of step 7 is NaN or infinite; .* a lower fit.optimizer.learning_rate"
    ):
        train(tmp_path, bad)


def test_a_layer_that_overflows_float16_is_named(tmp_path):
    def bad(step):
        batch = make_batch(step)
        return batch.with_(image=batch.image * 1e30) if step == 7 else batch

    with pytest.raises(NonFiniteLossError, match=r"step 7 .*In float16, Linear, outside of its layers, was the first"):
        train(tmp_path, bad, compute="float16")


@pytest.mark.parametrize(("spares_cores", "expected"), [(True, 1), (False, 3)])
def test_a_step_leaves_cores_to_the_threads_that_make_batches_if_the_job_spares_them(
    tmp_path, monkeypatch, spares_cores, expected
):
    seen = []

    def loss(answer, label):
        seen.append((torch.get_num_threads(), sys.getswitchinterval()))
        return mean_square(answer, label)

    before = torch.get_num_threads(), sys.getswitchinterval()
    monkeypatch.setattr(recipe_fit, "cpu_budget", lambda: 3)
    torch.set_num_threads(3)
    try:
        train(tmp_path, loss=loss, steps=2, job_values={"num_threads": 2, "spares_cores": spares_cores})
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before[0])
    assert [threads for threads, _ in seen] == [expected, expected]
    assert seen[0][1] < before[1]
    assert sys.getswitchinterval() == before[1]


def test_sinks_learn_of_the_machine_as_by_train_and_without_them_nobody_asks(tmp_path, monkeypatch):
    made = []

    class Once:
        """A sampler that takes one sample, when it begins."""

        def __init__(self, pid, *, period_s, on_sample):
            made.append((pid, period_s))
            self.on_sample = on_sample

        def __enter__(self):
            self.on_sample(Sample(time_s=1.0, period_s=1.0, host=HostSample(core_shares=(0.25,), program_cores=0.2)))

        def __exit__(self, *_):
            made.append("stopped")

    monkeypatch.setattr(open_session, "Sampler", Once)
    train(tmp_path / "alone", steps=2)
    assert made == []
    events = []

    class Kept:
        name = "kept"

        def begin(self, run):
            pass

        def write(self, event):
            events.append(event)

        def end(self):
            made.append("ended")

    train(tmp_path / "run", steps=2, sinks=[Kept()])
    assert made == [(os.getpid(), 10.0), "stopped", "ended"]
    assert [event["host"]["program_cores"] for event in events if event["event"] == "sample"] == [0.2]


@pytest.mark.parametrize("name", ["brain", "spleen"])
def test_recipes_of_segmentation_train_as_the_command_train_does(name, tmp_path, monkeypatch):
    # So they have its switches, streams and system metrics.
    recipe = importlib.import_module(f"voxelocity_lab.recipes.{name}.recipe")
    cases, sink, trained = object(), object(), []

    def run(*given):
        trained.append(given)
        return SimpleNamespace(headline="Mean foreground Dice 0.9", folder=tmp_path / "run")

    monkeypatch.setattr(recipe, {"brain": "_cases", "spleen": "_spleens"}[name], lambda given, **_: cases)
    monkeypatch.setattr("voxelocity_lab.recipes.segmentation.run_training", run)
    recipe.train(call_of(tmp_path, tmp_path / "run", sinks=[sink], overrides={"backend.tf32": False}))
    ((given, request, context),) = trained
    assert (given, request.out) == (cases, tmp_path / "run")
    assert context.sinks == [sink]
    assert request.overrides == {**recipe.KEYS, "backend.tf32": False}
    assert not any(key.startswith("backend.") for key in recipe.KEYS)
    # A run that continues is compared with what is asked of it.
    recipe.train(call_of(tmp_path, tmp_path / "run", resume=True, target_dice=0.9))
    assert trained[-1][1].overrides == {"train.target_dice": 0.9}


def test_the_page_of_a_race_names_the_command_that_repeats_it(tmp_path, monkeypatch):
    written, planned, table = [], [], Table(caption="times", heads=["side"], rows=[])
    outcome = SimpleNamespace(write=lambda name, **about: written.append(about), runs=(), table=table)
    for name, result in (("plan_race", None), ("run_rounds", outcome), ("factor_table", table)):
        monkeypatch.setattr(segmentation, name, lambda *_, result=result, **given: planned.append(given) or result)
    overrides = {"data.patch.shape_voxel": [32, 32, 16]}
    call = call_of(tmp_path / "a b", tmp_path / "race", time_budget_s=90.0, seed=4, num_seeds=2, overrides=overrides)
    segmentation.race(call, call.data, CONTEST)
    assert planned[0]["device"] == "cpu", "as was asked"
    words = shlex.split(written[0]["command"])
    assert words[:7] == ["voxelocity", "recipe", "spleen", "benchmark", str(call.data), "-o", str(call.out)]
    assert words[7:] == ["--target", "0.95", "--time-budget", "90s", "--seeds", "2", "--set",
                         "data.patch.shape_voxel=[32, 32, 16]", "--seed", "4", "--device", "cpu"]  # fmt: skip
