from __future__ import annotations

import io
import itertools
import json
import re
import shutil
import signal
import sys

import pytest
import torch
from planning.test_plans_file import plans_of
from rich.console import Console
from safetensors.torch import load_file

import voxelocity
from voxelocity.core.requests.train import TrainRequest
from voxelocity.infer import Predictor
from voxelocity.parallel import Place
from voxelocity.report import read_run
from voxelocity.step import TrainingStep
from voxelocity.training import entry, train, train_steps, validation
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.open_session import RunContext, SessionPlan, open_session
from voxelocity.training.resume import SavedRun
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.session import StopRequest
from voxelocity.training.start_choice import Beginning
from voxelocity.training.validation_cost import ValidationCost, num_passes
from voxelocity_observe.core.errors import InputError, InterruptedRunError, NonFiniteLossError, OutputError
from voxelocity_observe.core.events import read_events
from voxelocity_observe.core.interleaved_timing import Times
from voxelocity_observe.core.plain import parse_yaml, yaml_text


class StopAfterSteps(StopRequest):
    """As if SIGTERM arrived once so many steps are done."""

    def __init__(self, num_steps, monkeypatch):
        super().__init__()
        step = TrainingStep.__call__

        def counted(training, batch, learning_rate):
            nonlocal num_steps
            num_steps -= 1
            if num_steps == 0:
                self.signal_number = signal.SIGTERM
            return step(training, batch, learning_rate)

        monkeypatch.setattr(TrainingStep, "__call__", counted)


@pytest.fixture
def run_in(tiny_msd, tiny_plan):
    """Trains on the tiny data in a folder; keys of the plan by position, everything else by keyword."""

    def run(out, plan=None, cases=None, **options):
        # A clock of its own: what is written once a second must not depend on how busy the machine is.
        ticks = itertools.count()
        return train(
            voxelocity.open(tiny_msd) if cases is None else cases,
            out,
            overrides={**tiny_plan, **(plan or {})},
            device="cpu",
            **{"clock": lambda: next(ticks) * 1e-4, "console": Console(quiet=True), **options},
        )

    return run


@pytest.fixture
def stop_after(monkeypatch, run_in):
    """Trains in a folder and stops after some steps."""

    def run(out, num_steps, plan=None, **options):
        with monkeypatch.context() as patched, pytest.raises(InterruptedRunError) as caught:
            run_in(out, plan, stop=StopAfterSteps(num_steps, patched), **options)
        return caught.value

    return run


@pytest.fixture(scope="module")
def whole_run(tiny_msd, tiny_plan, tmp_path_factory):
    """Six steps without a stop, batches put together in the training's own thread."""
    out = tmp_path_factory.mktemp("whole") / "run"
    plan = {**tiny_plan, "data.feed.num_threads": 0}
    train(voxelocity.open(tiny_msd), out, overrides=plan, device="cpu", console=Console(quiet=True))
    return out


def last_checkpoint(run):
    return torch.load(max((run / "checkpoints").iterdir()), weights_only=True)


def assert_same_weights(one, other):
    ones, others = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert ones.keys() == others.keys()
    assert all(torch.equal(ones[name], others[name]) for name in ones)


def assert_same_checkpoint(one, other):
    ones, others = last_checkpoint(one), last_checkpoint(other)
    tensors, other_tensors = list(leaves(ones["training"])), list(leaves(others["training"]))
    assert [key for key, _ in tensors] == [key for key, _ in other_tensors]
    assert sum(torch.is_tensor(value) for _, value in tensors) > 10
    for (key, value), (_, other_value) in zip(tensors, other_tensors, strict=True):
        assert torch.equal(value, other_value) if torch.is_tensor(value) else value == other_value, key
    assert [ones["loop"][key] for key in ("step", "num_images")] == [
        others["loop"][key] for key in ("step", "num_images")
    ]


def leaves(value, key=""):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else None
    if items is None:
        yield key, value
    else:
        for name, inner in items:
            yield from leaves(inner, f"{key}.{name}")


def events(run, kind):
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def warnings(run):
    """All but that runs of so few steps have no score."""
    return [event["text"] for event in events(run, "warning") if "this training has no score" not in event["text"]]


def steps_saved(run):
    return [int(path.stem.removeprefix("step_")) for path in sorted((run / "checkpoints").iterdir())]


@pytest.mark.parametrize(("num_threads", "tier"), [(0, "none"), (2, "disk"), (2, "memory"), (2, "lmdb")])
def test_three_steps_and_three_more_are_six_steps_whatever_feeds_them(
    whole_run, run_in, stop_after, tmp_path, num_threads, tier
):
    plan = {"data.cache.tier": tier, "data.cache.folder": str(tmp_path / "cache")}
    plan["data.feed.num_threads"] = num_threads
    error = stop_after(tmp_path / "run", 3, plan)
    assert "at step 3" in str(error)
    assert "resume=True" in str(error)
    assert error.signal_number == signal.SIGTERM
    assert steps_saved(tmp_path / "run") == [3]
    assert run_in(tmp_path / "run", plan, resume=True).step == 6
    assert_same_weights(tmp_path / "run", whole_run)
    assert_same_checkpoint(tmp_path / "run", whole_run)


def test_a_rotating_cache_and_dropout_are_resumed_with_the_window_and_the_masks_of_the_whole_run(
    run_in, stop_after, tmp_path
):
    rotating = {"data.cache.tier": "rotating", "data.cache.num_cases": 2, "data.cache.replace_rate": 0.5}
    rotating["network.dropout"] = 0.3
    whole = run_in(tmp_path / "whole", rotating)
    assert whole.step == 6
    stop_after(tmp_path / "run", 3, {**rotating, "data.feed.num_threads": 2})
    run_in(tmp_path / "run", {**rotating, "data.feed.num_threads": 2}, resume=True)
    assert_same_weights(tmp_path / "run", tmp_path / "whole")


def test_what_decides_the_draws_of_a_cache_must_not_change_and_where_cases_are_kept_may(run_in, stop_after, tmp_path):
    rotating = {"data.cache.tier": "rotating", "data.cache.num_cases": 2}
    stop_after(tmp_path / "run", 3, rotating)
    for change, line in (({"data.cache.num_cases": 3}, "num_cases: 2 -> 3"), ({"data.cache.tier": "memory"}, "tier: ")):
        with pytest.raises(InputError, match=f"another plan .*data.cache.{line}"):
            run_in(tmp_path / "run", {**rotating, **change})
    stop_after(tmp_path / "other", 3)
    with pytest.raises(InputError, match=r"another plan .*data.cache.num_parts: 1 -> 2"):
        run_in(tmp_path / "other", {"data.cache.num_parts": 2})
    disk = {"data.cache.tier": "disk", "data.cache.folder": str(tmp_path / "cache")}
    assert run_in(tmp_path / "other", disk).step == 6


def test_cases_on_the_device_and_in_parts_train_as_far_as_they_should(whole_run, run_in, tmp_path):
    run_in(tmp_path / "run", {"data.cache.device_max_bytes": 2**20, "data.feed.num_threads": 2})
    assert_same_weights(tmp_path / "run", whole_run)
    run_in(tmp_path / "parts", {"data.cache.num_parts": 2})
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "parts", whole_run)


def test_another_seed_trains_other_weights(whole_run, run_in, tmp_path):
    run_in(tmp_path / "run", seed=1)
    with pytest.raises(AssertionError):
        assert_same_weights(tmp_path / "run", whole_run)


def test_validations_come_at_their_steps_and_change_no_weight(whole_run, run_in, tmp_path):
    run_in(tmp_path / "run", {"train.validate_every_steps": 2})
    assert [event["step"] for event in events(tmp_path / "run", "validation")] == [2, 4]
    assert_same_weights(tmp_path / "run", whole_run)


def test_a_run_that_continues_keeps_what_plans_of_nnunet_said(run_in, stop_after, tmp_path):
    path = plans_of(tmp_path / "plans", channels=("MRI",), spacing=(1.0, 1.0, 1.0), patch=(16, 16, 8))
    other = plans_of(tmp_path / "other", channels=("MRI",), spacing=(1.0, 1.0, 1.0), patch=(8, 16, 16))
    kept = ("network.name", "network.widths", "network.strides", "data.patch.shape_voxel", "window.shape_voxel")
    plan, record = dict.fromkeys(kept, "auto"), tmp_path / "run" / "run.yaml"
    stop_after(tmp_path / "run", 3, plan, plans=path)
    begun = SavedRun.read(record).plan
    assert (begun.network.widths, begun.data.patch.shape_voxel) == ((8, 12, 16), (16, 8, 16))
    with pytest.raises(InputError, match=r"data\.patch\.shape_voxel=.* where .* is stored"):
        run_in(tmp_path / "run", plan, plans=other, resume=True)
    with pytest.raises(InputError, match="another plan"):
        run_in(tmp_path / "run", plan)
    path.rename(path.with_name("moved.json"))
    assert run_in(tmp_path / "run", plan, resume=True).step == 6
    assert SavedRun.read(record).plan == begun


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(whole_run, run_in, stop_after, tmp_path):
    run, plan = tmp_path / "run", {"train.validate_every_steps": 2, "train.checkpoint_every_s": 1e-9}
    stop_after(run, 4, plan)
    assert steps_saved(run) == [2, 4]
    newest = run / "checkpoints" / "step_000000004.pt"
    newest.write_bytes(newest.read_bytes()[:1000])
    assert run_in(run, plan).step == 6
    (warning,) = warnings(run)
    assert str(newest) in warning
    assert "cannot be used and is removed; resuming from step_000000002.pt" in warning
    assert_same_weights(run, whole_run)


def test_a_run_whose_checkpoints_are_gone_says_that_it_begins_again(whole_run, run_in, stop_after, tmp_path):
    run = tmp_path / "run"
    stop_after(run, 3)
    assert warnings(run) == []
    shutil.rmtree(run / "checkpoints")
    run_in(run, resume=True)
    (text,) = warnings(run)
    assert "checkpoints holds no checkpoint any more, so the training begins again at step 0" in text
    assert_same_weights(run, whole_run)


def test_the_same_command_goes_on_and_a_different_one_is_refused(whole_run, run_in, stop_after, tmp_path):
    run = tmp_path / "run"
    stop_after(run, 3)
    before = steps_saved(run)
    with pytest.raises(
        InputError, match=r"another plan \(optimizer.learning_rate: 0.008 -> 0.1\).*resume=True.*overwrite=True"
    ):
        run_in(run, {"optimizer.learning_rate": 0.1})
    with pytest.raises(InputError, match=r"fold: 0 -> 1"):
        run_in(run, fold=1)
    assert steps_saved(run) == before
    run_in(run)
    assert_same_weights(run, whole_run)
    assert [event["num_steps"] for event in events(run, "steps")] == [3, 3]
    assert len(events(run, "run_started")) == 2


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("data", {"augment": {"effects": [{"factory": "planted_code:Run", "probability": 1.0, "settings": {}}]}}),
        ("network", {"name": "custom", "factory": "planted_code:build"}),
    ],
)
def test_code_that_the_file_of_a_run_names_does_not_run_unless_the_command_names_it(
    run_in, stop_after, tmp_path, monkeypatch, section, keys
):
    run = tmp_path / "run"
    stop_after(run, 3)
    (tmp_path / "planted_code.py").write_text(
        f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass Run: pass\ndef build(): pass"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("planted_code", None)
    record = parse_yaml((run / "run.yaml").read_text())
    merged = record["plan"][section]
    for name, value in keys.items():
        merged[name] = merged[name] | value if isinstance(merged.get(name), dict) else value
    (run / "run.yaml").write_text(yaml_text(record))
    named = r"planted_code:(Run|build).*runs only if you name it.*planner\.allowed_code"
    with pytest.raises(InputError, match=named):
        train(voxelocity.open(record["dataset"]["path"]), run, device="cpu", console=Console(quiet=True), resume=True)
    assert not (tmp_path / "ran").exists()
    allowed = {"planner.allowed_code": ["planted_code:Run", "planted_code:build"]}
    with pytest.raises(InputError, match="planted_code"):
        train(
            voxelocity.open(record["dataset"]["path"]), run, device="cpu", console=Console(quiet=True), resume=True,
            overrides=allowed,
        )  # fmt: skip
    assert (tmp_path / "ran").exists(), "named, it is imported, and found to be no effect and no network"


def test_how_ranks_share_a_run_may_change_when_it_is_resumed(whole_run, run_in, stop_after, tmp_path):
    run = tmp_path / "run"
    stop_after(run, 3, {"parallel.max_bytes": [1e12]})
    record = parse_yaml((run / "run.yaml").read_text())
    # As if two ranks had begun it.
    record["plan"]["parallel"]["max_bytes"] *= 2
    (run / "run.yaml").write_text(yaml_text(record))
    with pytest.raises(InputError, match=r"parallel.max_bytes has 2 values for 1 rank"):
        run_in(run, resume=True)
    run_in(run, {"parallel.max_bytes": []}, resume=True)
    assert_same_weights(run, whole_run)


def test_a_finished_run_is_refused_until_it_is_overwritten(whole_run, run_in, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    (run / "report.html").unlink()
    for options in ({}, {"resume": True}):
        with pytest.raises(InputError, match=r"already holds a finished run \(`voxelocity report .*overwrite=True"):
            run_in(run, **options)
    assert len(events(run, "run_started")) == 1
    (run / "notes.txt").write_text("a person's own")
    run_in(run, {"train.steps": 2}, overwrite=True)
    assert steps_saved(run) == [2]
    assert (run / "notes.txt").read_text() == "a person's own"
    assert len(events(run, "run_started")) == 1


def test_a_kill_while_a_run_is_replaced_leaves_a_folder_that_the_same_command_takes(
    whole_run, run_in, tmp_path, monkeypatch
):
    run = shutil.copytree(whole_run, tmp_path / "run")
    (run / "notes.txt").write_text("a person's own")

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write_record", killed)
        with pytest.raises(KeyboardInterrupt):
            run_in(run, {"train.steps": 2}, overwrite=True)
    assert not RunFolder(run).is_finished()
    run_in(run, {"train.steps": 2}, overwrite=True)
    assert steps_saved(run) == [2]


def test_a_run_that_another_process_made_during_the_planning_is_not_replaced(whole_run, run_in, tmp_path, monkeypatch):
    run, plan = tmp_path / "run", entry.plan_session

    def plan_slowly(*args, **options):
        planned = plan(*args, **options)
        shutil.copytree(whole_run, run, dirs_exist_ok=True)
        return planned

    monkeypatch.setattr(entry, "plan_session", plan_slowly)
    with pytest.raises(OutputError, match=r"another process has trained into .*run since .*resume=True, or choose"):
        run_in(run)
    assert_same_weights(run, whole_run)
    assert events(run, "run_started") == events(whole_run, "run_started")


def test_a_run_killed_while_it_renders_its_page_has_everything_else(run_in, tmp_path, monkeypatch):
    def killed(*args):
        raise KeyboardInterrupt

    run = tmp_path / "run"
    monkeypatch.setattr(entry, "render_page", killed)
    with pytest.raises(KeyboardInterrupt):
        run_in(run)
    assert len(events(run, "run_finished")) == 1
    for name in ("metrics.csv", "progress.png", "scores.json", "model.safetensors"):
        assert (run / name).stat().st_size > 0


def test_another_data_set_is_refused_with_and_without_resume(run_in, stop_after, own_msd, tmp_path):
    run = tmp_path / "run"
    stop_after(run, 3)
    before = steps_saved(run)
    for options in ({}, {"resume": True}):
        with pytest.raises(
            InputError, match=r"another data set \(path: .*Task99_Tiny -> .*data\).*out=.*overwrite=True.*moved"
        ):
            run_in(run, cases=voxelocity.open(own_msd), **options)
    assert steps_saved(run) == before
    assert len(events(run, "run_started")) == 1


def test_a_data_set_that_changed_in_place_is_refused(run_in, stop_after, own_msd, tmp_path):
    run, path = tmp_path / "run", own_msd / "dataset.json"
    stop_after(run, 3, cases=voxelocity.open(own_msd))
    path.write_text(path.read_text().replace('"core"', '"stone"'))
    text = r"unfinished run on another data set \(labels.2: core -> stone\); choose another .*overwrite=True$"
    for options in ({}, {"resume": True}):
        with pytest.raises(InputError, match=text):
            run_in(run, cases=voxelocity.open(own_msd), **options)


def test_a_damaged_run_is_refused_before_it_is_planned(run_in, stop_after, tmp_path, monkeypatch):
    run = tmp_path / "run"
    stop_after(run, 3)
    whole = run / "events.jsonl"
    monkeypatch.setattr("voxelocity.training.start_choice.plan_cases", None)
    for content, text in (
        (b"garbage\n" + whole.read_bytes(), r"line 1 is not an event.*delete that line"),
        (whole.read_bytes() + b'{"event":"steps","time_s":9}\n', r"event 'steps' at 9 s cannot be used"),
    ):
        whole.write_bytes(content)
        for options in ({}, {"resume": True}):
            with pytest.raises(InputError, match=text):
                run_in(run, **options)


def test_a_damaged_run_can_be_overwritten(run_in, stop_after, tmp_path):
    run = tmp_path / "run"
    stop_after(run, 3)
    (run / "run.yaml").write_bytes(b"\xff")
    (run / "events.jsonl").write_text("garbage\n{}\n")
    assert run_in(run, {"train.steps": 2}, overwrite=True).step == 2


def test_going_on_on_another_device_is_allowed_and_said(run_in, stop_after, tmp_path):
    run = tmp_path / "run"
    stop_after(run, 3)
    record = (run / "run.yaml").read_text()
    assert "\ndevice: cpu\n" in record
    (run / "run.yaml").write_text(record.replace("\ndevice: cpu\n", "\ndevice: cuda\n"))
    assert run_in(run, resume=True).step == 6
    (warning,) = warnings(run)
    assert "started on cuda and continues on cpu with the same plan" in warning


@pytest.fixture
def longer(tiny_msd, run_in, tmp_path, rehearsed):
    """A finished run, and a function that gives it more time by a clock that counts its calls."""
    run = tmp_path / "run"
    rehearsed(1.0)
    run_in(run)

    def call(time_budget, **options):
        ticks = itertools.count()
        return train(
            voxelocity.open(tiny_msd), run, time_budget=time_budget, resume=True, device="cpu",
            console=Console(quiet=True), clock=lambda: float(next(ticks)), **options,
        )  # fmt: skip

    return run, call


def test_a_finished_run_gets_more_time_and_says_that_it_has_two_parts(longer):
    run, call = longer
    before = read_events(run / "events.jsonl")
    result = call("+600s")
    assert result.step > 6
    after = read_events(run / "events.jsonl")
    assert after[: len(before)] == before
    taken_s = before[-1]["time_s"]
    (extended,) = [event for event in after if event["event"] == "extended"]
    assert extended["taken_s"] == taken_s
    assert extended["time_budget_s"] == taken_s + 600.0
    record = parse_yaml((run / "run.yaml").read_text())
    assert record["plan"]["train"]["steps"] == 0
    assert record["plan"]["train"]["time_budget_s"] == taken_s + 600.0
    assert record["parts_s"] == [taken_s]
    assert any("results come from two parts" in text for text in warnings(run))
    assert "results come from two parts" in (run / "report.html").read_text()
    first = next(event for event in after[len(before) :] if event["event"] == "steps")
    assert 0.0 < first["learning_rate"] <= record["plan"]["optimizer"]["learning_rate"]


def test_a_run_that_is_stopped_in_its_more_time_is_unfinished_and_continues(longer, monkeypatch):
    run, call = longer
    with monkeypatch.context() as patched, pytest.raises(InterruptedRunError):
        call("+600s", stop=StopAfterSteps(2, patched))
    assert not RunFolder(run).is_finished()
    assert read_run(run).status == "interrupted"
    ticks = itertools.count()
    train(voxelocity.open(read_run(run).dataset.path), run, resume=True, device="cpu", console=Console(quiet=True),
          clock=lambda: float(next(ticks)))  # fmt: skip
    assert RunFolder(run).is_finished()
    assert len([event for event in read_events(run / "events.jsonl") if event["event"] == "extended"]) == 1


def test_more_time_is_for_a_run_that_is_there(longer, run_in, tmp_path):
    run, _ = longer
    with pytest.raises(InputError, match="adds time to an existing run"):
        run_in(tmp_path / "other", time_budget="+5m")
    with pytest.raises(InputError, match="holds no run to resume"):
        run_in(tmp_path / "other", time_budget="+5m", resume=True)
    with pytest.raises(InputError, match=r"already holds a finished run; train it for longer with .* \+10m"):
        run_in(run)


def test_a_stop_before_the_first_step_says_that_nothing_is_lost(whole_run, run_in, tmp_path):
    run, stop = tmp_path / "run", StopRequest()
    stop.signal_number = signal.SIGINT
    with pytest.raises(InterruptedRunError) as caught:
        run_in(run, stop=stop)
    text = str(caught.value)
    assert "stopped by Ctrl-C before the first training step, so there was no state to save" in text
    assert f"the same call with resume=True trains the run in {run}" in text
    assert "the state is saved" not in text
    run_in(run, resume=True)
    assert_same_weights(run, whole_run)


def test_a_stop_at_step_0_of_the_loop_says_so_too(run_in, tmp_path, monkeypatch):
    stop = StopRequest()
    feed = train_steps.Feed

    def stopped(*args, **options):
        stop.signal_number = signal.SIGINT
        return feed(*args, **options)

    monkeypatch.setattr(train_steps, "Feed", stopped)
    with pytest.raises(InterruptedRunError, match="before the first training step, so there was no state to save"):
        run_in(tmp_path / "run", stop=stop)


def test_a_stop_while_a_resumed_run_fills_its_cache_names_the_step_that_is_saved(run_in, stop_after, tmp_path):
    stop_after(tmp_path / "run", 3)
    stop = StopRequest()
    stop.signal_number = signal.SIGTERM
    with pytest.raises(InterruptedRunError, match="stopped by SIGTERM at step 3; the state is saved"):
        run_in(tmp_path / "run", resume=True, stop=stop)


@pytest.fixture
def rehearsed(monkeypatch):
    """Lets the rehearsal find that validating a case in full takes so long."""

    def takes(case_s):
        def rehearse(predictor, cases, spec, **options):
            shapes = [cases.shape(index) for index in range(len(cases))]
            return ValidationCost(shapes, window_s=case_s * len(cases) / num_passes(shapes, spec.window), other_s=0.0)

        monkeypatch.setattr(validation, "rehearse", rehearse)

    return takes


def test_a_validation_that_a_budget_cannot_pay_is_made_cheaper_and_can_be_done_in_full_later(
    run_in, tmp_path, rehearsed
):
    rehearsed(70.0)
    run = tmp_path / "run"
    plan = {"train.steps": 2, "window.mirror_axes": [0, 1, 2]}
    run_in(run, plan, time_budget_s=60.0, spent_s=4.5)
    planned, done = warnings(run)
    cheapest = "mirroring left out instead of over xyz, windows overlap by 0% instead of 50%, no surface distances"
    assert f"planned for now: {cheapest} (about 18 s instead of 2 min 20 s)" in planned
    # The two steps took less than was left to them.
    assert "mirroring over x instead of over xyz (about 35 s instead of 2 min 20 s)" in done
    for text in (planned, done):
        assert f"voxelocity train --resume {run} --full-validation" in text
    scores = json.loads((run / "scores.json").read_text())["cases"]
    assert len(scores) == 2
    with pytest.raises(InputError, match="already holds a finished run"):
        run_in(run, plan, time_budget_s=60.0, resume=True)
    before = load_file(run / "model.safetensors")
    result = run_in(run, plan, resume=True, full_validation=True)
    assert result.step == 2
    again = json.loads((run / "scores.json").read_text())["cases"]
    assert [score["case_id"] for score in again] == [score["case_id"] for score in scores]
    assert again != scores
    assert len(warnings(run)) == 2
    assert all(torch.equal(value, before[name]) for name, value in load_file(run / "model.safetensors").items())
    assert len(read_run(run).scores) == 2
    newest = max((run / "checkpoints").iterdir())
    state = torch.load(newest, weights_only=True)
    newest.unlink()
    state["loop"]["step"] = 1
    torch.save(state, newest.with_name("step_000000001.pt"))
    scored = (run / "scores.json").read_bytes()
    with pytest.raises(InputError, match=r"is of step 1, and the model of step 2, so a validation would score another"):
        run_in(run, plan, resume=True, full_validation=True)
    assert (run / "scores.json").read_bytes() == scored
    shutil.rmtree(run / "checkpoints")
    kept = (run / "scores.json").read_bytes(), (run / "events.jsonl").read_bytes()
    with pytest.raises(
        InputError, match="checkpoints holds no checkpoint, so the finished run can be neither continued"
    ):
        run_in(run, plan, resume=True, full_validation=True)
    assert ((run / "scores.json").read_bytes(), (run / "events.jsonl").read_bytes()) == kept


def test_a_finished_run_stays_finished_if_its_second_validation_is_stopped(whole_run, run_in, tmp_path):
    run, stop = shutil.copytree(whole_run, tmp_path / "run"), StopRequest()
    stop.signal_number = signal.SIGTERM
    with pytest.raises(InterruptedRunError):
        run_in(run, resume=True, full_validation=True, stop=stop)
    before, after = read_run(whole_run), read_run(run)
    assert (after.status, after.scores, after.step) == ("finished", before.scores, 6)
    with pytest.raises(InputError, match=r"already holds a finished run; .* another run with start_from=... and"):
        run_in(run, resume=True)
    assert run_in(run, resume=True, full_validation=True).step == 6


def test_where_even_the_cheapest_validation_of_all_cases_is_too_long_some_are_left_out(run_in, tmp_path, rehearsed):
    rehearsed(40.0)
    run_in(tmp_path / "run", {"train.steps": 2, "window.mirror_axes": []}, time_budget_s=60.0)
    done = warnings(tmp_path / "run")[-1]
    assert "1 of 2 cases" in done
    assert len(json.loads((tmp_path / "run" / "scores.json").read_text())["cases"]) == 1


def test_surface_distances_that_come_after_the_time_is_over_are_left_out(run_in, tmp_path, rehearsed, monkeypatch):
    rehearsed(1.0)
    time_s = 0.0
    score = validation.score_cases

    def late(*args, **options):
        nonlocal time_s
        time_s += 100.0
        return score(*args, **options)

    monkeypatch.setattr(validation, "score_cases", late)
    run_in(tmp_path / "run", {"train.steps": 2}, time_budget_s=60.0, clock=lambda: time_s)
    scores = json.loads((tmp_path / "run" / "scores.json").read_text())["cases"]
    assert all(case["dice"] and case["hd95_mm"] == {} for case in scores)
    named = ", ".join(case["case_id"] for case in scores)
    texts = [event["text"] for event in events(tmp_path / "run", "warning")]
    assert f"train: the time budget left no time for the surface distances of {named}" in texts
    assert (tmp_path / "run" / "report.html").exists()


def test_a_budget_that_is_hopeless_says_how_late_the_run_may_end(run_in, tmp_path, rehearsed):
    rehearsed(70.0)
    run_in(tmp_path / "run", {"train.steps": 2, "window.mirror_axes": []}, time_budget_s=8.0, spent_s=4.5)
    text = warnings(tmp_path / "run")[1]
    assert re.search(r"a budget of 8\.0 s is short: 4\.\d s went into start-up and preparation", text), text
    assert re.search(r"validating up to 2 cases takes about .* will end at least .* and up to .* late", text), text
    assert text.endswith("late: the model's files and the report take up to 2.0 s")
    assert "-" not in re.sub(r"[a-z]-[a-z]", "", text)


def test_a_budget_that_is_long_enough_is_not_commented(run_in, tmp_path, rehearsed):
    rehearsed(1.0)
    run_in(tmp_path / "run", {"train.steps": 2}, time_budget_s=60.0)
    assert warnings(tmp_path / "run") == []


@pytest.mark.parametrize(("seconds", "is_said"), [(40.0, True), (0.001, False)])
def test_a_budget_without_a_validation_on_the_way_says_so(run_in, tmp_path, rehearsed, seconds, is_said):
    rehearsed(seconds)
    said = io.StringIO()
    run_in(tmp_path / "run", {"train.steps": 2}, time_budget_s=60.0, console=Console(file=said, width=300))
    assert ("no validation during training: it takes about" in said.getvalue()) == is_said
    assert "There is no Dice curve" in (tmp_path / "run" / "report.html").read_text()


def test_a_mistake_in_the_new_command_leaves_the_old_run_alone(whole_run, run_in, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    with pytest.raises(InputError, match=r"train.step.*did you mean 'train.steps'"):
        run_in(run, {"train.step": 2}, overwrite=True)
    with pytest.raises(
        InputError,
        match=r"^vx\.train\(resume=True, overwrite=True\): the first keeps .*the second replaces it; give one of them",
    ):
        run_in(run, resume=True, overwrite=True)
    assert_same_weights(run, whole_run)


@pytest.mark.parametrize(("where", "step"), [("the rehearsal", 0), ("a validation on the way", 3), ("the end", 6)])
def test_a_stop_is_answered_between_two_batches_of_windows(run_in, tmp_path, monkeypatch, where, step):
    stop, num_windows = StopRequest(), 0
    forward = Predictor._forward

    def counted(predictor, windows):
        nonlocal num_windows
        num_windows += 1
        if num_windows == 2:
            stop.signal_number = signal.SIGTERM
        return forward(predictor, windows)

    monkeypatch.setattr(Predictor, "_forward", counted)
    plan = {"train.validate_every_steps": 3 if where == "a validation on the way" else 0, "window.batch_size": 1}
    budget = {"time_budget_s": 1000.0} if where == "the rehearsal" else {}
    with pytest.raises(InterruptedRunError, match="stopped by SIGTERM"):
        run_in(tmp_path / "run", plan, stop=stop, **budget)
    # The forward pass that was about to begin asked, and none came after it.
    assert num_windows == 2
    assert events(tmp_path / "run", "validation") == []
    assert Checkpoints(tmp_path / "run" / "checkpoints", keep=2).latest_step() == step


def test_a_kill_in_a_validation_on_the_way_costs_no_step(run_in, tmp_path, monkeypatch):
    def killed(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(validation, "score_prepared", killed)
    with pytest.raises(KeyboardInterrupt):
        run_in(tmp_path / "run", {"train.validate_every_steps": 3})
    assert steps_saved(tmp_path / "run") == [3]


def test_a_run_with_a_target_stops_when_it_is_reached(run_in, tmp_path):
    plan = {"train.steps": 40, "train.validate_every_steps": 2, "train.target_dice": 0.001}
    result = run_in(tmp_path / "run", plan)
    reached = events(tmp_path / "run", "validation")[-1]
    assert reached["mean_dice"] >= 0.001
    assert result.step == reached["step"] < 40
    assert result.target_reached_s == pytest.approx(reached["time_s"])
    assert steps_saved(tmp_path / "run")[-1] == result.step


def test_a_run_that_ended_after_its_target_was_reached_is_not_trained_further(run_in, tmp_path, monkeypatch):
    plan = {"train.steps": 40, "train.validate_every_steps": 2, "train.target_dice": 0.001}
    with monkeypatch.context() as patched:
        patched.setattr(entry, "_finish", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run_in(tmp_path / "run", plan)
    reached = events(tmp_path / "run", "validation")[-1]["step"]
    assert run_in(tmp_path / "run", plan, resume=True).step == reached < 40
    assert events(tmp_path / "run", "validation")[-1]["step"] == reached


def test_a_batch_that_does_not_fit_is_cut_and_the_run_says_so(run_in, whole_run, tmp_path, monkeypatch):
    def full(training, *arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with monkeypatch.context() as patched:
        patched.setattr(TrainingStep, "_at_once", full)
        run_in(tmp_path / "run")
    (warning,) = warnings(tmp_path / "run")
    assert "2 pieces" in warning
    ours, theirs = (load_file(run / "model.safetensors") for run in (tmp_path / "run", whole_run))
    # Biases before instance norms have no effect, and gradients of roundings alone.
    for name in (name for name, weight in theirs.items() if weight.ndim > 1):
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-3)


def test_checkpoints_are_written_at_the_end_of_epochs_if_the_plan_says_so(run_in, tmp_path):
    keys = {"train.steps": 12, "train.keep_checkpoints": 99}
    run_in(tmp_path / "by_time", keys)
    run_in(tmp_path / "by_epoch", {**keys, "train.checkpoint_every_epochs": 1})
    assert [event["step"] for event in events(tmp_path / "by_time", "checkpoint")] == [12]
    found = [event["step"] for event in events(tmp_path / "by_epoch", "checkpoint")]
    # A stretch of steps ends with each of them.
    stretches = events(tmp_path / "by_epoch", "steps")
    ends = [after for after, before in zip(stretches[1:], stretches, strict=False) if after["epoch"] > before["epoch"]]
    assert found[:-1] == [event["step"] - event["num_steps"] for event in ends]
    assert len(found) > 2


def loss_that_breaks(at_call, how):
    """In place of `build_loss`: ordinary until the given call, counted from 1."""
    build = entry.build_loss

    def build_breaking(config, **options):
        good, num_calls = build(config, **options), 0

        def loss(logits, label):
            nonlocal num_calls
            num_calls += 1
            value = good(logits, label)
            if num_calls != at_call:
                return value
            # The root has the value 0 and the slope 0 times infinity.
            return value * float("nan") if how == "loss" else value + (logits.sum() * 0.0).sqrt()

        return loss

    return build_breaking


@pytest.mark.parametrize(
    ("how", "text"), [("loss", "the loss became nan at step 3"), ("weights", "weights became NaN")]
)
def test_what_is_not_finite_ends_the_run_before_it_is_kept(run_in, whole_run, tmp_path, monkeypatch, how, text):
    run, plan = tmp_path / "run", {"train.validate_every_steps": 2, "train.checkpoint_every_s": 1e-9}
    with monkeypatch.context() as patched:
        patched.setattr(entry, "build_loss", loss_that_breaks(4, how))
        with pytest.raises(NonFiniteLossError, match=text) as caught:
            run_in(run, plan)
    assert caught.value.step == 3
    assert caught.value.case_ids
    assert all(case_id in str(caught.value) for case_id in caught.value.case_ids)
    assert "optimizer.learning_rate" in str(caught.value)
    assert steps_saved(run) == [0, 2]
    assert [event["step"] for event in events(run, "validation")] == [2]
    assert not (run / "model.safetensors").exists()
    run_in(run, plan)
    assert_same_weights(run, whole_run)


def test_a_gradient_that_breaks_the_last_step_leaves_no_model(run_in, tmp_path, monkeypatch):
    monkeypatch.setattr(entry, "build_loss", loss_that_breaks(6, "weights"))
    with pytest.raises(NonFiniteLossError, match="weights became NaN"):
        run_in(tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_goes_on_with_what_it_measured_whatever_a_new_measurement_says(run_in, stop_after, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("voxelocity.planning.make._MEASURE", "once")
    others = [0.1]

    def time_steps(task, ways, device, *, limit_s, clock):
        return Times(seconds={name: (others[0] if "channels_last" in name else 0.2,) * 5 for name in ways})

    monkeypatch.setattr("voxelocity.planning.step_timing.time_steps", time_steps)
    by_rule = {"precision.channels_last": "auto"}
    stop_after(tmp_path / "run", 3, by_rule)
    shutil.rmtree(tmp_path / "cache")
    others[0] = 0.4
    result = run_in(tmp_path / "run", plan={**by_rule, "planner.measure": "again"})
    assert result.step == 6
    assert read_run(tmp_path / "run").plan["precision"]["channels_last"] is True


def test_a_launcher_that_repeats_the_command_continues_the_run(whole_run, run_in, stop_after, tmp_path, monkeypatch):
    """Also with --overwrite, and where fewer ranks would be planned for in another way."""
    stop_after(tmp_path / "run", 3)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setattr("voxelocity.planning.machine.cpu_budget", lambda: 64)
    run_in(tmp_path / "run", overwrite=True)
    assert_same_weights(tmp_path / "run", whole_run)
    assert [event["step"] for event in events(tmp_path / "run", "checkpoint")] == [3, 6]


def test_a_launcher_that_repeats_the_command_overwrites_what_another_job_has_left(
    whole_run, run_in, stop_after, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    shutil.copytree(whole_run, run)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "this job")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    # The first start ended before it came to overwrite anything.
    stop_after(run, 3, overwrite=True)
    assert steps_saved(run) == [3]
    run_in(run, overwrite=True)
    assert steps_saved(run) == [3, 6]


def test_a_rank_that_was_not_there_before_continues_at_the_time_of_the_run(tiny_msd, tiny_plan, tmp_path):
    answers = [5.0, 100.0]

    class NewRank:
        """Of a run whose earlier sessions took 100 s, and whose leader began this one 5 s ago."""

        place, is_leader, is_alone = Place(rank=1, size=2), False, True

        def set_silence(self, silence_s):
            pass

        def from_leader(self, value):
            return answers.pop(0)

    planned = voxelocity.plan(voxelocity.open(tiny_msd), overrides=tiny_plan, device="cpu", cache_folder=tmp_path)
    session_plan = SessionPlan(
        beginning=Beginning(planned=planned, source=None, losses={}),
        saved=None,
        is_finished=False,
        skipped=frozenset(),
        timings={},
    )
    context = RunContext(console=Console(quiet=True), clock=lambda: 50.0, stop=StopRequest())
    request = TrainRequest(out=tmp_path / "run", device="cpu")
    with open_session(session_plan, request, NewRank(), context, began_s=50.0) as session:
        assert session.log.elapsed_s() == 105.0
