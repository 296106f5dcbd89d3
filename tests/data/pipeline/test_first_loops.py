"""Batches on a machine that has not compiled the loops yet."""

import itertools
import sys
import threading

import pytest
import torch

from voxelocity.data.augment import AugmentConfig, numba_crop, numba_engine, numba_noise, numba_warp
from voxelocity.data.pipeline import DataConfig, Feed, PreparedCases, assemble, first_loops
from voxelocity.data.pipeline.first_loops import FirstLoops, every_change

ALL = {
    "affine_probability": 0.5,
    "elastic_probability": 0.3,
    "bias_probability": 0.3,
    "blur_probability": 0.3,
    "contrast_probability": 0.3,
    "low_resolution_probability": 0.3,
    "gamma_inverted_probability": 0.3,
}


def feed_of(refs, config, **options):
    cases = PreparedCases(refs, label_values=(0, 1), prepare=config.prepare, cache=config.cache, warn=print)
    return Feed(cases, config, seed=3, **options)


@pytest.fixture
def never_compiled(monkeypatch):
    monkeypatch.setattr(first_loops, "_were_compiled", lambda: False)


@pytest.fixture
def engines(monkeypatch):
    """The engine of each call, by the thread that made it."""
    called, augment = [], assemble.augment

    def noted(*arguments, engine):
        called.append((threading.current_thread().name == "voxelocity-compile", engine))
        augment(*arguments, engine=engine)

    monkeypatch.setattr(assemble, "augment", noted)
    return called


def test_loops_that_are_kept_on_disk_are_ready_at_once():
    assert FirstLoops().are_ready(lambda: pytest.fail("nothing is to be compiled"))


def test_one_thread_compiles_and_the_loops_are_ready_when_it_ends(never_compiled):
    loops, may_end, calls = FirstLoops(), threading.Event(), []

    def call_each():
        calls.append(threading.current_thread())
        may_end.wait(20)
        raise ValueError("which the next call of the loops raises again")

    assert [loops.are_ready(call_each) for _ in range(3)] == [False] * 3
    may_end.set()
    calls[0].join()
    assert loops.are_ready(call_each)
    assert len(calls) == 1


def test_threads_of_two_feeds_take_turns_and_leave_the_interpreters_switch_interval_as_it_was(never_compiled):
    before_s, may_end, seen = sys.getswitchinterval(), threading.Event(), []
    feeds = [FirstLoops(), FirstLoops()]

    def call_each():
        seen.append(sys.getswitchinterval())
        may_end.wait(20)

    assert [loops.are_ready(call_each) for loops in feeds] == [False, False]
    may_end.set()
    for loops in feeds:
        loops.close()
    assert len(seen) == 2
    assert max(seen) < before_s
    assert sys.getswitchinterval() == before_s


def test_batches_are_made_by_torch_until_the_loops_are_compiled(
    blob_refs, data_config, never_compiled, engines, monkeypatch
):
    may_compile, compiled, call_loops = threading.Event(), threading.Event(), assemble.Assembler._call_loops

    def held_back(*arguments):
        may_compile.wait(20)
        call_loops(*arguments)
        compiled.set()

    monkeypatch.setattr(assemble.Assembler, "_call_loops", held_back)
    config = data_config("memory", 0)
    with feed_of(blob_refs, config) as feed:
        batches = list(itertools.islice(feed, 3))
        assert engines == [(False, "torch")] * 3
        may_compile.set()
        assert compiled.wait(60)
        feed._assembler._first_loops._thread.join()
        batches.append(next(feed))
    assert engines == [(False, "torch")] * 3 + [(True, "numba")] * 2 + [(False, "auto")]
    with feed_of(blob_refs, config, waits_for_loops=True) as feed:
        for ours, theirs in zip(batches, feed, strict=False):
            torch.testing.assert_close(ours.image, theirs.image, rtol=0, atol=1e-4)
            assert (ours.label != theirs.label).float().mean() < 1e-3
    assert {engine for _, engine in engines[6:]} == {"auto"}


def test_an_engine_that_is_named_is_waited_for(blob_refs, data_config, never_compiled, engines):
    config = data_config("memory", 0)
    named = DataConfig.parse({**config.to_plain(), "augment": {**config.augment.to_plain(), "engine": "numba"}})
    with feed_of(blob_refs, named) as feed:
        next(feed)
    assert engines == [(False, "numba")]


def test_every_loop_that_later_batches_call_was_called_by_the_thread(blob_refs, data_config, monkeypatch):
    called = set()

    def note(module, name):
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments: (called.add(name), plain(*arguments))[1])

    for name in ("apply_bias", "scale_and_shift", "spread", "coarsen", "bend", "blur_along"):
        note(numba_engine.intensity, name)
    for module, name in ((numba_crop, "crop"), (numba_warp, "warp"), (numba_noise, "add_noise")):
        note(module, name)
    config = data_config("memory", 0)
    config = DataConfig.parse({**config.to_plain(), "augment": ALL})
    with feed_of(blob_refs, config) as feed:
        assembler = feed._assembler
        draws = feed._order.draws(0)
        assembler._call_loops(draws, feed._supply.take(0, draws), config.patch)
        by_thread = set(called)
        called.clear()
        list(itertools.islice(feed, 60))
    assert len(called) == 9
    assert called <= by_thread


def test_what_a_sample_may_be_changed_by_is_certain_and_what_it_may_not_stays_out():
    warped, other = every_change(AugmentConfig.parse({"flip_probability": [0.0, 0.2, 0.5], "elastic_probability": 0.1}))
    assert warped.flip_probability == (0.0, 1.0, 1.0)
    assert (warped.affine_probability, warped.elastic_probability, warped.bias_probability) == (1.0, 1.0, 0.0)
    assert (other.affine_probability, other.elastic_probability, other.noise_probability) == (0.0, 0.0, 1.0)
