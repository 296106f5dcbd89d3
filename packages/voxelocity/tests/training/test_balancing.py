"""Patches of a batch by rank, from what a pass takes on each."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from voxelocity.parallel import Place
from voxelocity.training.balancing import Balance


class Step:
    """Takes a second for each patch, and one more."""

    takes_shares = is_plain = True

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
                run_on_all=lambda work: work(),
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
    assert Balance(slow, Step()).shares == (4, 2)
    assert slow.logged[0][1]["shares"] == (4, 2)
    assert slow.printed == [
        "patches of a batch by rank: 4, 2, because a step then takes 29% less time on the slowest rank"
    ]


def test_equal_ranks_and_small_differences_keep_equal_shares_without_a_word(session):
    for other in ((1.0, 1.0, 6), (1.0, 1.05, 6)):
        equal = session(other)
        assert Balance(equal, Step()).shares == (3, 3)
        assert equal.printed == []


def test_a_rank_without_memory_for_its_equal_share_takes_what_fits(session):
    assert Balance(session((1.0, 1.0, 2)), Step()).shares == (4, 2)


def test_only_different_devices_are_measured_unless_asked_for(session):
    assert Balance(session(("A", 11, 1), balance="auto"), Step()).shares == (3, 3)
    assert Balance(session(("B", 8, 1), (1.0, 2.0, 6), balance="auto"), Step()).shares == (4, 2)


def test_given_proportions_are_followed_and_never_changed(session):
    for balance, shares in (((2.0, 1.0), (4, 2)), ("equal", (3, 3))):
        given = Balance(session(balance=balance), Step())
        assert (given.shares, given.is_measured) == (shares, False)
    assert Balance(session(size=1), Step()).shares == (6,)


def test_shares_follow_what_the_steps_take_in_an_epoch(session):
    one = session((1.0, 1.0, 6), 1.0, 0.1, 0.1)
    balance = Balance(one, Step())
    assert (balance.shares, balance.is_measured) == ((3, 3), True)
    # Ten steps of three patches each: 0.5 s a patch here, 1 s there.
    balance.count({"forward": 15.0, "backward": 99.0}, 10)
    assert balance.after_epoch()
    assert balance.shares == (4, 2)
    assert one.logged[-1][1]["shares"] == (4, 2)
    assert "33% less time for its forward passes" in one.printed[-1]
    # Now 0.1 s a patch on both; and an epoch without a step.
    balance.count({"forward": 4.0}, 10)
    assert balance.after_epoch()
    assert balance.shares == (3, 3)
    assert not balance.after_epoch()
    assert len(one.logged) == 2


def test_a_rank_never_takes_more_than_fits_its_memory(session):
    balance = Balance(session((1.0, 1.0, 3), 0.01), Step())
    balance.count({"forward": 15.0}, 10)
    assert not balance.after_epoch()
    assert balance.shares == (3, 3)
