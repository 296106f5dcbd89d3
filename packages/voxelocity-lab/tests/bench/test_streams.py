import contextlib
import functools
import itertools

import pytest

from voxelocity_lab.bench.streams import batches_per_s, fastest, passes_of
from voxelocity_observe.core.clock import FakeClock


def stream_of(clock, first_s, each_s):
    @contextlib.contextmanager
    def open_stream():
        def batches():
            clock.advance(first_s)
            yield 0
            while True:
                clock.advance(each_s)
                yield 1

        yield batches()

    return open_stream


def test_the_start_of_a_stream_does_not_count_towards_its_rate():
    clock = FakeClock()
    assert batches_per_s(stream_of(clock, 100.0, 0.5), 10, clock=clock) == pytest.approx(2.0)


def test_a_loader_is_ended_with_its_block():
    ended = []

    def batches():
        try:
            yield from itertools.count()
        finally:
            ended.append(True)

    with passes_of(batches()) as stream:
        assert [next(stream), next(stream)] == [0, 1]
        assert not ended
    assert ended


def test_workers_of_a_loader_are_ended_with_its_block():
    class Iterator:
        is_ended = False

        def __next__(self):
            return 1

        def _shutdown_workers(self):
            self.is_ended = True

    class Loader:
        def __iter__(self):
            return iterator

    iterator = Iterator()
    iterator.__class__.__iter__ = lambda self: self
    with passes_of(Loader()):
        pass
    assert iterator.is_ended


def test_a_peer_is_given_the_quickest_of_its_settings(monkeypatch):
    clock = FakeClock()
    measured = functools.partial(batches_per_s, clock=clock)
    monkeypatch.setattr("voxelocity_lab.bench.streams.batches_per_s", measured)
    quick, slow = stream_of(clock, 0.0, 0.1), stream_of(clock, 0.0, 0.4)
    words, chosen = fastest({"slow": slow, "quick": quick}, 5)
    assert chosen is quick
    assert words == "quick (batches/s when tried: 10; slow: 2.5)"
