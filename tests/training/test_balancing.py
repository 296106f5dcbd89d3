"""Patches of a batch by rank, from what a pass takes on each."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from voxelocity.parallel import Place
from voxelocity.training.balancing import batch_shares


class Step:
    """Takes a second for each patch, and one more."""

    def __init__(self, per_patch_s=1.0):
        self.per_patch_s = per_patch_s

    def trial(self, shape, *, clock):
        return 1.0 + self.per_patch_s * shape[0], 0


@pytest.fixture
def session():
    """Makes the session of rank 0 of two; the other rank answers `others` in turn."""

    def make(*others, balance="measured", num_patches=6, size=2):
        answers = iter(others)
        printed, logged = [], []
        return SimpleNamespace(
            world=SimpleNamespace(
                place=Place(rank=0, size=size, local_size=size),
                gather=lambda own: [own, next(answers)],
                all_succeed=lambda work: work(),
            ),
            plan=SimpleNamespace(
                data=SimpleNamespace(batch_size=num_patches, patch=SimpleNamespace(shape_voxel=(8, 8, 8))),
                parallel=SimpleNamespace(balance=balance),
            ),
            planned=SimpleNamespace(machine=SimpleNamespace(device_name="A", device_memory_bytes=11, num_cpus=1)),
            spec=SimpleNamespace(channels=("CT",)),
            device=torch.device("cpu"),
            clock=lambda: 0.0,
            stage=lambda name: nullcontext(),
            log=SimpleNamespace(write=lambda event, **values: logged.append((event, values))),
            console=SimpleNamespace(print=lambda text, **_: printed.append(text)),
            printed=printed,
            logged=logged,
        )

    return make


def test_a_rank_that_is_half_as_fast_takes_fewer_patches_and_it_is_said(session):
    slow = session((1.0, 2.0, 6))
    assert batch_shares(slow, Step()) == (4, 2)
    assert slow.logged[0][1]["shares"] == (4, 2)
    assert slow.printed == ["patches of a batch by rank: 4, 2, as a step then takes 29% less time on the slowest rank"]


def test_equal_ranks_and_small_differences_keep_equal_shares_without_a_word(session):
    for other in ((1.0, 1.0, 6), (1.0, 1.05, 6)):
        equal = session(other)
        assert batch_shares(equal, Step()) == (3, 3)
        assert equal.printed == []


def test_a_rank_without_memory_for_its_equal_share_takes_what_fits(session):
    assert batch_shares(session((1.0, 1.0, 2)), Step()) == (4, 2)


def test_only_different_devices_are_measured_unless_asked_for(session):
    assert batch_shares(session(("A", 11, 1), balance="auto"), None) == (3, 3)
    assert batch_shares(session(("B", 8, 1), (1.0, 2.0, 6), balance="auto"), Step()) == (4, 2)


def test_given_proportions_are_followed(session):
    assert batch_shares(session(balance=(2.0, 1.0)), None) == (4, 2)
    assert batch_shares(session(balance="equal"), None) == (3, 3)
    assert batch_shares(session(size=1), None) == (6,)
