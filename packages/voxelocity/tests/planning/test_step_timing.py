import contextlib
import json
import threading

import pytest
import torch

from voxelocity.planning import step_timing
from voxelocity.planning.step_timing import StepTask, StepVariant, describe, time_steps
from voxelocity.step import BackendConfig, LossConfig, NetworkConfig, OptimizerConfig, PrecisionConfig, build_network
from voxelocity_observe.core import interleaved_timing
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.interleaved_timing import MIN_ROUNDS

CPU = torch.device("cpu")
TASK = StepTask(
    network=NetworkConfig(name="unet", widths=(4, 8), strides=((2, 2, 2),), dropout=0.5),
    loss=LossConfig(),
    optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3),
    num_channels=2,
    num_classes=3,
    patch_voxel=(8, 8, 8),
    batch_size=2,
)


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch):
    """Three rounds of one call each."""
    monkeypatch.setattr(interleaved_timing, "MAX_ROUNDS", MIN_ROUNDS)
    monkeypatch.setattr(interleaved_timing, "_MAX_CALLS", 1)


def way(**precision):
    return StepVariant(precision=PrecisionConfig(**{"compute": "float32", **precision}), backend=BackendConfig())


WAYS = {"outermost": way(), "innermost": way(channels_last=True)}


def test_each_way_computes_as_it_says_and_is_timed(monkeypatch):
    seen = set()
    built = step_timing.TrainingStep

    def step(network, loss, *, optimizer, precision, device):
        seen.add((precision.compute, precision.channels_last, network.training, device))
        return built(network, loss, optimizer=optimizer, precision=precision, device=device)

    monkeypatch.setattr(step_timing, "TrainingStep", step)
    times = time_steps(TASK, {**WAYS, "half": way(compute="bfloat16")}, CPU, limit_s=60.0)
    assert times.why_not == ""
    assert times.seconds.keys() == {*WAYS, "half"}
    assert all(len(values) == MIN_ROUNDS and min(values) > 0.0 for values in times.seconds.values())
    assert seen == {("float32", False, True, CPU), ("float32", True, True, CPU), ("bfloat16", False, True, CPU)}


def test_threads_and_random_numbers_are_left_as_they_were():
    num_threads, state = torch.get_num_threads(), torch.get_rng_state()
    time_steps(TASK, WAYS, CPU, limit_s=60.0)
    assert torch.get_num_threads() == num_threads
    assert torch.equal(torch.get_rng_state(), state), "dropout draws from torch's own generator"
    assert torch.is_grad_enabled()


def test_a_step_that_takes_too_long_is_recognized_by_a_small_one(monkeypatch):
    shapes = []

    class Slow(step_timing._Step):
        def __call__(self, batch):
            shapes.append(tuple(batch.image.shape))

    ticks = iter(range(1000))
    monkeypatch.setattr(step_timing, "_Step", Slow)
    task = StepTask(**{**vars(TASK), "patch_voxel": (128, 128, 128)})
    times = time_steps(task, WAYS, CPU, limit_s=6.0, clock=lambda: float(next(ticks)))
    assert times.seconds == {}
    # One second for 32 x 32 x 32 voxels is 128 for two patches of 128 x 128 x 128.
    assert times.why_not.startswith("a step takes about 1.3e+02 s here")
    assert shapes == [(1, 2, 32, 32, 32)] * 2


@pytest.mark.parametrize(
    ("patch", "divisor", "smaller"),
    [
        ((40, 56, 40), (8, 8, 8), (16, 24, 16)),
        ((16, 16, 16), (8, 8, 8), (16, 16, 16)),
        ((512, 512, 16), (32, 32, 4), (64, 64, 8)),
        ((8, 8, 8), (8, 8, 8), (8, 8, 8)),
    ],
)
def test_the_smaller_patch_still_fits_the_network(patch, divisor, smaller):
    assert step_timing._smaller(patch, divisor) == smaller


def test_a_step_on_overlapping_classes_has_an_output_for_each_of_them(monkeypatch):
    built = []

    def build(config, *, num_channels, num_classes, seed):
        built.append(num_classes)
        return build_network(config, num_channels=num_channels, num_classes=num_classes, seed=seed)

    monkeypatch.setattr(step_timing, "build_network", build)
    task = StepTask(**{**vars(TASK), "num_regions": 5})
    assert time_steps(task, WAYS, CPU, limit_s=60.0).seconds.keys() == WAYS.keys()
    assert built == [5, 5]


def test_a_device_without_the_memory_for_it_is_said(monkeypatch):
    step = step_timing.TrainingStep.__call__
    for fits, which in ((0, "the planned step"), (1, "measuring alternatives")):
        num_whole = 0

        def full(training, batch, learning_rate, fits=fits):
            nonlocal num_whole
            num_whole += len(batch.image) == TASK.batch_size
            if num_whole > fits:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return step(training, batch, learning_rate)

        monkeypatch.setattr(step_timing.TrainingStep, "__call__", full)
        times = time_steps(TASK, WAYS, CPU, limit_s=6.0)
        assert (times.seconds, times.why_not) == ({}, f"the device's memory is too small for {which}")
        assert times.ran_out_of_memory == (fits == 0)


def test_task_and_ways_are_plain_data_that_tell_them_apart():
    plain = describe(TASK, WAYS)
    assert json.loads(json.dumps(plain)) == plain
    assert plain["ways"]["innermost"]["precision"]["channels_last"] is True
    assert plain["patch_voxel"] == [8, 8, 8]
    assert describe(StepTask(**{**vars(TASK), "batch_size": 3}), WAYS) != plain


@pytest.fixture
def gpu_steps(monkeypatch):
    """Steps of a GPU that take so long by a clock, 0.1 s to build the network; returns the clock."""

    def of(step_s, *, slower=1.0):
        clock = FakeClock()

        class Step:
            def __init__(self, task, way, device, network, thread=None):
                self.seconds = step_s * (slower if way.precision.channels_last else 1.0)

            def __call__(self, batch):
                clock.advance(self.seconds)

        def build(*_, **__):
            clock.advance(0.1)
            return torch.nn.Identity()

        monkeypatch.setattr(step_timing, "_Step", Step)
        monkeypatch.setattr(step_timing, "build_network", build)
        monkeypatch.setattr(step_timing, "random_batch", lambda *_, **__: None)
        monkeypatch.setattr(interleaved_timing, "MAX_ROUNDS", 21)
        monkeypatch.setattr(interleaved_timing, "_MAX_CALLS", 20)
        return clock

    return of


@pytest.mark.parametrize("step_ms", [4, 26, 212])
@pytest.mark.parametrize("slower", [0.8, 1.0, 1.04, 1.5])
def test_measuring_on_a_gpu_takes_half_a_second_at_most_its_network_included(gpu_steps, step_ms, slower):
    clock = gpu_steps(step_ms / 1000.0, slower=slower)
    times = step_timing._time_variants(TASK, WAYS, torch.device("cuda", 0), 0.5, clock, [])
    assert clock() <= 0.5
    assert times.seconds or step_ms > 4
    assert not times.seconds or step_ms < 212


def test_ways_on_a_gpu_start_from_copies_of_one_network(gpu_steps):
    clock = gpu_steps(0.0)
    step_timing._steps(TASK, {**WAYS, "half": way(compute="bfloat16")}, torch.device("cuda", 0), contextlib.ExitStack())
    assert clock() == pytest.approx(0.1)


def test_each_way_has_a_thread_of_its_own_where_threads_keep_how_they_computed(monkeypatch):
    # As on a CUDA device, where torch keeps cuDNN's plans for each thread.
    monkeypatch.setattr(step_timing, "_is_kept_by_thread", lambda device: True)
    seen, built = {}, step_timing.TrainingStep

    def step(network, loss, **options):
        inner = built(network, loss, **options)
        backward = []
        next(network.parameters()).register_hook(lambda gradient: backward.append(threading.get_ident()))

        def one(batch, rate):
            backward.clear()
            inner(batch, rate)
            here = threading.get_ident()
            assert set(backward) == {here}
            assert not torch._C._is_multithreading_enabled()
            seen.setdefault(options["precision"].channels_last, set()).add(here)

        return one

    monkeypatch.setattr(step_timing, "TrainingStep", step)
    times = time_steps(TASK, WAYS, CPU, limit_s=60.0)
    assert times.seconds.keys() == WAYS.keys()
    (first,), (second,) = seen[False], seen[True]
    assert len({first, second, threading.get_ident()}) == 3
    assert torch._C._is_multithreading_enabled()
