"""The choice of a runtime: what is tried, what is refused, what is remembered. Times are made up."""

import json
from dataclasses import replace

import pytest
import torch

from voxelocity.infer.runtimes.auto import load_quickest
from voxelocity.infer.runtimes.contract import Runtime
from voxelocity.testing.runtime_contract import example_network, example_task
from voxelocity_observe.core.clock import FakeClock

TASK = example_task()
MANY = 10_000


class Stage:
    """Runtimes with a given speed: seconds of building, of a batch, and what the logits are multiplied by."""

    def __init__(self, **others):
        self.clock, self.built, self.notes = FakeClock(), [], []
        settings = {"eager": (0.0, 3.0, 1.0), **others}
        self.runtimes = {name.replace("_", "-"): self.runtime(name, *values) for name, values in settings.items()}

    def runtime(self, name, build_s, batch_s, factor):
        def load(network, task):
            self.clock.advance(build_s)
            self.built.append(name)
            if batch_s is None:
                raise RuntimeError("unsupported operator\nmore")

            def forward(windows):
                self.clock.advance(batch_s)
                return network(windows) * factor

            forward.runtime = name
            return forward

        return Runtime(name=name, why_not=lambda device: "", load=load, build_s=build_s)

    def choose(self, folder, *, num_windows=MANY, network=None, task=TASK):
        self.built.clear()
        self.notes.clear()
        return load_quickest(
            network or example_network(),
            task,
            num_windows=num_windows,
            folder=folder,
            note=self.notes.append,
            runtimes=self.runtimes,
            clock=self.clock,
        ).forward.runtime


def test_the_quickest_is_chosen_and_said_with_its_figures(tmp_path):
    stage = Stage(slow=(10.0, 6.0, 1.0), fast=(20.0, 0.6, 1.0001))
    assert stage.choose(tmp_path) == "fast"
    (note,) = stage.notes
    assert "runtime fast for 10000 windows: 0.20 s per window, 21 s to build (eager 1.0 s, slow 2.0 s)" in note
    assert "differ from eager's by 0.0001 at most" in note
    assert "measured now and stored" in note


def test_a_short_batch_that_is_held_up_once_does_not_cost_a_runtime_its_choice(tmp_path):
    stage = Stage(steady=(1.0, 0.03, 1.0), held_up=(1.0, 0.01, 1.0))
    load = stage.runtimes["held-up"].load

    def load_slowed(network, task):
        forward, calls = load(network, task), []

        def slowed(windows):
            calls.append(1)
            if len(calls) == 2:
                stage.clock.advance(0.09)
            return forward(windows)

        slowed.runtime = forward.runtime
        return slowed

    stage.runtimes["held-up"] = replace(stage.runtimes["held-up"], load=load_slowed)
    assert stage.choose(tmp_path) == "held_up"


def test_a_choice_is_remembered_for_the_machine_and_the_network(tmp_path):
    stage = Stage(slow=(10.0, 6.0, 1.0), fast=(20.0, 0.6, 1.0))
    stage.choose(tmp_path)
    assert stage.choose(tmp_path) == "fast"
    assert stage.built == ["fast"], "nothing else is built"
    assert "measured earlier on this machine" in stage.notes[0]
    other = example_network()
    with torch.no_grad():
        next(other.parameters()).mul_(1.01)
    stage.choose(tmp_path, network=other)
    assert set(stage.built) == {"eager", "slow", "fast"}, "other weights are another network"
    stage.choose(tmp_path, task=replace(TASK, batch_size=1))
    assert set(stage.built) == {"eager", "slow", "fast"}


def test_a_build_that_takes_longer_than_it_saves_is_not_even_tried(tmp_path):
    stage = Stage(fast=(20.0, 0.6, 1.0))
    assert stage.choose(tmp_path, num_windows=50) == "eager"
    assert stage.built == ["eager"]
    assert stage.notes == [
        "predict: runtime eager, untested: 50 windows take it about 50 s, and building another takes longer than that "
        "could save"
    ]
    assert list(tmp_path.iterdir()) == []


def test_building_counts_for_what_is_remembered_too(tmp_path):
    stage = Stage(fast=(20.0, 0.6, 1.0))
    stage.choose(tmp_path)
    assert stage.choose(tmp_path, num_windows=20) == "eager"
    assert stage.choose(tmp_path, num_windows=30) == "fast"


def test_more_windows_try_what_fewer_did_not(tmp_path):
    stage = Stage(soon=(5.0, 2.4, 1.0), late=(100.0, 0.06, 1.0))
    assert stage.choose(tmp_path, num_windows=200) == "soon"
    assert "late" not in stage.built
    assert stage.choose(tmp_path, num_windows=MANY) == "late"
    assert stage.choose(tmp_path, num_windows=200) == "late"


@pytest.mark.parametrize(
    ("factor", "difference"), [(1.01, "0.01"), (float("nan"), "nan"), (torch.zeros(1, 4, 1, 1, 1), "inf")]
)
def test_a_runtime_that_answers_wrongly_is_refused_with_the_difference(tmp_path, factor, difference):
    stage = Stage(wrong=(1.0, 0.03, factor), right=(1.0, 2.4, 1.0))
    if isinstance(factor, torch.Tensor):
        stage.runtimes["wrong"] = replace(stage.runtimes["wrong"], load=lambda network, task: lambda windows: factor)
    assert stage.choose(tmp_path) == "right"
    text = f"runtime wrong is refused: its logits differ from eager's by {difference} of the largest, more than 0.001"
    assert text in stage.notes[0]
    assert stage.choose(tmp_path) == "right"
    assert "wrong" not in stage.built, "it stays refused"


def test_half_precision_may_differ_by_its_roundings(tmp_path):
    stage = Stage(rounded=(1.0, 0.03, 1.01))
    assert stage.choose(tmp_path, task=example_task(compute="bfloat16")) == "rounded"


def test_a_runtime_that_cannot_be_built_is_a_line_and_not_the_end(tmp_path):
    stage = Stage(broken=(1.0, None, 1.0), right=(1.0, 0.3, 1.0))
    assert stage.choose(tmp_path) == "right"
    assert stage.notes[0] == (
        "predict: runtime broken is left out, it could not be built (RuntimeError: unsupported operator)"
    )


def test_a_remembered_runtime_that_cannot_be_built_any_more_gives_way_to_the_next(tmp_path):
    stage = Stage(first=(1.0, 0.03, 1.0), second=(1.0, 0.3, 1.0))
    assert stage.choose(tmp_path) == "first"
    stage.runtimes["first"] = replace(
        stage.runtimes["first"], load=Stage(first=(1.0, None, 1.0)).runtimes["first"].load
    )
    assert stage.choose(tmp_path) == "second"
    assert "runtime first could not be built (RuntimeError: unsupported operator)" in stage.notes[0]


@pytest.mark.parametrize("content", ["", "[]", "null", "trials:[]", 'trials:{"eager": {"window_s": 1.0}}',
                                     'trials:{"eager": {"build_s": "x"}}'])  # fmt: skip
def test_a_damaged_memory_is_measured_again(tmp_path, content):
    stage = Stage(fast=(20.0, 0.6, 1.0))
    stage.choose(tmp_path)
    (path,) = tmp_path.iterdir()
    if content.startswith("trials:"):
        content = json.dumps(json.loads(path.read_text()) | {"trials": json.loads(content.removeprefix("trials:"))})
    path.write_text(content)
    assert stage.choose(tmp_path) == "fast"
    assert "measured now and stored" in stage.notes[0]


def test_a_batch_that_does_not_fit_leaves_the_choice_to_the_window_engine(tmp_path):
    def load(network, task):
        def forward(windows):
            raise torch.OutOfMemoryError("CUDA out of memory")

        forward.runtime = "eager"
        return forward

    stage = Stage(fast=(20.0, 0.6, 1.0))
    stage.runtimes["eager"] = replace(stage.runtimes["eager"], load=load)
    assert stage.choose(tmp_path) == "eager"
    assert stage.notes == ["predict: runtime eager, untested: a full batch of windows does not fit into memory"]
    # Also where eager was timed before other programs took the memory, and another runtime is tried now.
    stage = Stage(fast=(20.0, 0.6, 1.0))
    stage.choose(tmp_path)
    stage.runtimes |= {"eager": replace(stage.runtimes["eager"], load=load), "new": stage.runtime("new", 1.0, 0.1, 1.0)}
    assert stage.choose(tmp_path) == "eager"
    assert stage.notes == ["predict: runtime eager, untested: a full batch of windows does not fit into memory"]


def test_a_runtime_that_is_not_installed_is_not_tried(tmp_path):
    stage = Stage(fast=(20.0, 0.6, 1.0))
    stage.runtimes["fast"] = replace(stage.runtimes["fast"], why_not=lambda device: "not installed")
    assert stage.choose(tmp_path) == "eager"


def test_eager_in_bfloat16_is_itself_within_a_third_of_the_tolerance():
    from voxelocity.infer.runtimes.auto import TOLERANCES, relative_difference
    from voxelocity.infer.runtimes.native import load_eager
    from voxelocity.testing.runtime_contract import example_windows

    task = example_task(compute="bfloat16")
    network, windows = example_network(), example_windows(task, 3)
    with torch.no_grad():
        found = relative_difference(load_eager(network, task)(windows).float(), network(windows))
    assert 1e-3 < found < TOLERANCES["bfloat16"] / 3
