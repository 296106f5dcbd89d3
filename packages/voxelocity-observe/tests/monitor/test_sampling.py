"""The pace of sampling and what is kept, with a clock that is moved by hand."""

import threading

import pytest

from shared.limits import HANGS_S
from voxelocity_observe.core.clock import FakeClock
from voxelocity_observe.core.errors import ConfigError
from voxelocity_observe.monitor.samples import HostSample
from voxelocity_observe.monitor.sampling import Sampler, next_tick_s


class FakeHost:
    missing = ("disk traffic: none",)
    pids = (5,)

    def __init__(self, pid=None):
        self.pid = pid
        self.is_closed = False

    def sample(self):
        return HostSample(program_cores=1.0)

    def close(self):
        self.is_closed = True


class FakeGpus:
    missing = ("GPUs: none",)
    gpus = ()

    def sample(self, pids):
        assert pids == (5,)
        return ()

    def close(self):
        pass


def sampler(**others):
    return Sampler(make_host=others.pop("make_host", FakeHost), make_gpu=FakeGpus, **others)


@pytest.mark.parametrize("period_s", [0.0, 0.05, -1.0, 61.0, float("nan")])
def test_a_period_out_of_range_is_refused_with_the_range(period_s):
    with pytest.raises(ConfigError, match=r"a period of .* s is out of range; choose 0.1 to 60 s"):
        Sampler(period_s=period_s)


@pytest.mark.parametrize(
    ("due_s", "now_s", "expected"), [(1.0, 1.0, 1.5), (1.0, 1.3, 1.5), (1.0, 1.6, 2.0), (1.0, 9.9, 10.0)]
)
def test_late_ticks_do_not_shift_the_grid_and_missed_ones_are_left_out(due_s, now_s, expected):
    assert next_tick_s(due_s, now_s, 0.5) == pytest.approx(expected)


def test_time_counts_from_the_start_and_periods_from_the_sample_before():
    clock = FakeClock(100.0)
    seen = []
    with sampler(clock=clock, period_s=60, on_sample=seen.append, pid=5) as sampling:
        clock.advance(2.0)
        sampling.take()
        clock.advance(3.0)
        last = sampling.take()
        assert sampling.last is last
    assert [(s.time_s, s.period_s) for s in sampling.samples] == [(2.0, 2.0), (5.0, 3.0)]
    assert seen == list(sampling.samples)


def test_two_samples_at_one_moment_are_one():
    clock = FakeClock()
    with sampler(clock=clock, period_s=60) as sampling:
        clock.advance(1.0)
        assert sampling.take() is not None
        assert sampling.take() is None
    assert len(sampling.samples) == 1


def test_the_thread_samples_by_itself_and_ends():
    enough = threading.Event()
    count = []

    def note(sample):
        count.append(sample)
        if len(count) == 3:
            enough.set()

    with sampler(period_s=0.1, on_sample=note):
        assert enough.wait(HANGS_S)
    assert not [t for t in threading.enumerate() if t.name == "voxelocity sampler"]
    assert all(sample.period_s > 0 for sample in count)


def test_what_is_missing_is_known_during_and_after():
    sampling = sampler(period_s=60).start()
    assert sampling.missing == ("disk traffic: none", "GPUs: none")
    sampling.stop()
    sampling.stop()
    assert sampling.missing == ("disk traffic: none", "GPUs: none")


def test_after_the_end_nothing_is_sampled_and_files_are_closed():
    hosts = []
    clock = FakeClock()
    sampling = sampler(period_s=60, clock=clock, make_host=lambda pid: hosts.append(FakeHost(pid)) or hosts[-1])
    sampling.start()
    sampling.stop()
    clock.advance(1.0)
    assert sampling.take() is None
    assert hosts[0].is_closed


def test_a_failure_within_sampling_ends_it_and_is_reported_with_what_is_missing():
    class Broken(FakeHost):
        num_samples = 0

        def sample(self):
            self.num_samples += 1
            if self.num_samples > 1:
                raise ZeroDivisionError("made up")
            return HostSample()

    sampling = sampler(period_s=0.1, make_host=Broken).start()
    sampling._thread.join(HANGS_S)
    sampling.stop()
    assert sampling.missing[-1].endswith("s: ZeroDivisionError: made up")
    assert sampling.missing[:-1] == ("disk traffic: none", "GPUs: none")


def test_a_failure_never_reaches_the_caller():
    def broken(sample):
        raise ZeroDivisionError("made up")

    clock = FakeClock()
    with sampler(clock=clock, period_s=60, on_sample=broken) as sampling:
        clock.advance(1.0)
        assert sampling.take() is None
        clock.advance(1.0)
        assert sampling.take() is None
    assert sampling.missing[-1] == "samples after 1.0 s: ZeroDivisionError: made up"


def test_own_cpu_time_is_counted():
    clock = FakeClock()

    def work(sample):
        sum(range(200_000))

    with sampler(clock=clock, period_s=60, on_sample=work) as sampling:
        begun_s = sampling.own_cpu_s
        clock.advance(1.0)
        sampling.take()
        assert sampling.own_cpu_s > begun_s
