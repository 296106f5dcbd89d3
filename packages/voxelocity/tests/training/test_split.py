"""Where the report says that a run's time went, on a clock that moves only where the run does something known."""

from __future__ import annotations

import signal

import pytest
import torch
from rich.console import Console

import voxelocity
from voxelocity.data.pipeline import Feed, PreparedCases
from voxelocity.report import read_run
from voxelocity.report.summary import part_shares, stage_shares, throughput
from voxelocity.training import entry, start_choice, train, validation
from voxelocity.training.checkpoint import Checkpoints
from voxelocity.training.session import StopRequest
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.errors import InterruptedRunError

START_S = 5.0


@pytest.fixture
def clock(monkeypatch):
    """A clock that each part of a run moves by a time of its own."""
    clock = FakeClock(1000.0)

    def takes(owner, name, seconds):
        function = getattr(owner, name)

        def slow(*args, **kwargs):
            clock.advance(seconds)
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, slow)

    takes(start_choice, "plan_cases", 2.0)
    takes(PreparedCases, "fill", 3.0)
    takes(entry, "build_network", 0.5)
    takes(Feed, "__next__", 0.25)
    takes(entry, "build_loss", 0.25)
    takes(torch.Tensor, "backward", 2.0)
    takes(torch.nn.utils, "clip_grad_norm_", 0.125)
    takes(validation, "score_prepared", 4.0)
    takes(Checkpoints, "save", 0.0625)
    takes(entry, "render_progress_png", 0.5)
    # What is drawn outside the training's thread takes none of its time.
    monkeypatch.setattr("voxelocity.training.progress.render_progress_png", lambda *args: None)
    takes(entry, "save_model", 0.25)
    takes(validation, "score_cases", 6.0)
    takes(entry, "write_metrics", 0.125)
    takes(entry, "render_page", 1.0)
    build = entry.build_network

    def with_slow_forward(*args, **kwargs):
        network = build(*args, **kwargs)
        network.register_forward_pre_hook(lambda module, inputs: clock.advance(1.0) if module.training else None)
        return network

    monkeypatch.setattr(entry, "build_network", with_slow_forward)
    return clock


@pytest.fixture
def run_in(tiny_msd, tiny_plan, clock):
    """Trains six steps with a validation after the third."""

    def run(out, **options):
        plan = {**tiny_plan, "data.feed.num_threads": 0, "train.validate_every_steps": 3}
        cases = voxelocity.open(tiny_msd)
        console = Console(quiet=True)
        return train(cases, out, overrides=plan, device="cpu", console=console, clock=clock, spent_s=START_S, **options)

    return run


def seconds(shares):
    return {share.name: pytest.approx(share.seconds, abs=1e-5) for share in shares}


def test_every_second_of_a_run_and_of_its_steps_has_a_name(run_in, clock, tmp_path):
    begin_s = clock() - START_S
    run_in(tmp_path / "run")
    facts = read_run(tmp_path / "run")
    assert seconds(stage_shares(facts)) == {
        "start-up": START_S,
        "planning": 2.0,
        "filling the cache": 3.0,
        "building the network": 0.75,
        "training steps": 6 * 3.375,
        "validation on the way": 4.0,
        "checkpoints": 2 * 0.0625,
        "report": 0.25 + 0.125 + 0.5 + 1.0,
        "final validation": 6.0,
    }
    assert facts.seconds == pytest.approx(clock() - begin_s, abs=1e-5)
    expected = {"waiting for data": 1.5, "forward": 6.0, "backward": 12.0, "optimizer": 0.75}
    assert seconds(part_shares(facts)) == expected
    assert throughput(facts).wait_share == pytest.approx(1.5 / sum(expected.values()))


class StopAtStep(StopRequest):
    """As if SIGTERM arrived when so many batches were asked for."""

    def __init__(self, step, monkeypatch):
        super().__init__()
        take = Feed.__next__

        def counted(feed):
            batch = take(feed)
            if batch.step == step:
                self.signal_number = signal.SIGTERM
            return batch

        monkeypatch.setattr(Feed, "__next__", counted)


def test_a_resumed_run_names_the_seconds_of_all_its_sessions_and_none_in_between(run_in, clock, tmp_path, monkeypatch):
    begin_s = clock()
    with monkeypatch.context() as patched, pytest.raises(InterruptedRunError):
        run_in(tmp_path / "run", stop=StopAtStep(3, patched))
    first_s = START_S + clock() - begin_s
    clock.advance(50_000.0)
    begin_s = clock()
    run_in(tmp_path / "run", resume=True)
    facts = read_run(tmp_path / "run")
    assert facts.seconds == pytest.approx(first_s + START_S + clock() - begin_s, abs=1e-4)
    shares = seconds(stage_shares(facts))
    assert shares == {
        "start-up": 2 * START_S,
        "planning": 4.0,
        "filling the cache": 6.0,
        "building the network": 1.5,
        "training steps": 6 * 3.375,
        "validation on the way": 4.0,
        "checkpoints": 3 * 0.0625,
        "report": 1.875,
        "final validation": 6.0,
    }


def killed_at(step):
    """A feed that dies with the batch of this step in hand."""
    take = Feed.__next__

    def killed(feed):
        batch = take(feed)
        if batch.step == step:
            raise KeyboardInterrupt
        return batch

    return killed


def test_steps_that_are_done_again_after_a_kill_are_told_as_lost(run_in, clock, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Feed, "__next__", killed_at(5))
        with pytest.raises(KeyboardInterrupt):
            run_in(tmp_path / "run")
    run_in(tmp_path / "run", resume=True)
    facts = read_run(tmp_path / "run")
    shares = seconds(stage_shares(facts))
    # The validation after the third step had a checkpoint before it, which knows nothing of it.
    assert shares["repeated after an interruption"] == 2 * 3.375 + 4.0
    assert shares["training steps"] == 6 * 3.375
    # Of the step that was killed nobody has written down a name: only that the run was in its training.
    assert shares.get("other", 0.0) == pytest.approx(0.25, abs=1e-5)
    assert sum(share.seconds for share in stage_shares(facts)) == pytest.approx(facts.seconds)
