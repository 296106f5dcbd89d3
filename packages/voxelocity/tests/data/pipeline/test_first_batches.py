"""Batches on a machine that has not compiled the loops yet."""

import itertools

import pytest
import torch

from shared.noted_cases import NotedCases
from voxelocity.data.pipeline import Feed, build


@pytest.fixture
def first_batches(blob_refs, data_config, monkeypatch):
    """Some batches of a feed, and how many of them were made by plain torch as no loop is ever compiled."""
    meanwhile = []
    monkeypatch.setattr(build, "without_waiting", lambda by_kernels, plain: (meanwhile.append(1), plain())[1])

    def take(number, engine="auto", **options):
        meanwhile.clear()
        config = data_config(engine=engine)
        with Feed(NotedCases(blob_refs, config), config, seed=3, **options) as feed:
            batches = list(itertools.islice(feed, number))
        return batches, len(meanwhile)

    return take


def test_torch_makes_the_batches_that_the_loops_would_make(first_batches):
    batches, num_by_torch = first_batches(4)
    waited, num_without = first_batches(4, waits_for_loops=True)
    assert num_by_torch >= 4
    assert num_without == 0
    for ours, theirs in zip(batches, waited, strict=True):
        torch.testing.assert_close(ours.image, theirs.image, rtol=0, atol=1e-4)
        assert (ours.label != theirs.label).float().mean() < 1e-3


def test_an_engine_that_is_named_is_waited_for(first_batches):
    assert first_batches(1, engine="numba")[1] == 0
