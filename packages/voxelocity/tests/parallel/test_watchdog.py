"""Ranks that hang: what is concluded from their signs of life, and how their processes end."""

import re
import signal

import pytest
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from shared.limits import HANGS_S
from shared.ranks import finish, start_ranks
from voxelocity.parallel import launch
from voxelocity.parallel.watchdog import Pulse, Watchdog, find_silent, find_stuck
from voxelocity_observe.core.clock import FakeClock


def pulses(*known):
    """From pairs: the seconds since a rank's last sign of life, and its position."""
    return [Pulse(beat_s=-since_s, position=position, position_s=-30.0) for since_s, position in known]


def test_a_rank_that_gives_no_sign_of_life_is_silent():
    ranks = pulses((1.0, 7), (26.0, 7), (0.0, 9))
    assert find_silent(ranks, 0, now_s=0.0, answered_s=0.0, silence_s=25.0) == (1,)
    assert find_silent(ranks, 0, now_s=0.0, answered_s=0.0, silence_s=27.0) == ()
    assert find_silent(ranks, 1, now_s=0.0, answered_s=0.0, silence_s=25.0) == (), "its own signs do not matter"


def test_a_rank_that_has_left_is_not_silent():
    ranks = pulses((1.0, 7), (26.0, 7))
    ranks[1].beat = -1
    assert find_silent(ranks, 0, now_s=0.0, answered_s=0.0, silence_s=25.0) == ()
    assert find_stuck(ranks, now_s=0.0) == ()


def test_a_store_that_does_not_answer_means_that_rank_0_has_stopped():
    ranks = pulses((30.0, 7), (30.0, 7), (30.0, 7))
    assert find_silent(ranks, 1, now_s=0.0, answered_s=-26.0, silence_s=25.0) == (0,)
    assert find_silent(ranks, 0, now_s=0.0, answered_s=-26.0, silence_s=25.0) == ()


@pytest.mark.parametrize(
    ("positions", "limit_s", "stuck"),
    [
        ((8, 7, 8), 25.0, (1,)),
        ((8, 7, 7), 25.0, (1, 2)),
        ((8, 7, 8), 31.0, ()),
        ((8, 8, 8), 25.0, (0, 1, 2)),
    ],
)
def test_the_ranks_that_others_wait_for_are_stuck(positions, limit_s, stuck):
    ranks = pulses(*((0.0, position) for position in positions))
    for pulse in ranks:
        pulse.limit_s = limit_s
    assert find_stuck(ranks, now_s=0.0) == stuck


def test_the_limit_is_that_of_the_rank_that_waits_and_begins_with_its_waiting():
    ranks = pulses((0.0, 8), (0.0, 7))
    ranks[0].limit_s = 25.0
    assert find_stuck(ranks, now_s=0.0) == (1,), "whatever limit the other one has"
    ranks[0].position_s = -20.0
    assert find_stuck(ranks, now_s=0.0) == ()


def test_a_rank_that_does_nothing_is_waited_for_less_long():
    ranks = pulses((0.0, 8), (0.0, 7))
    ranks[0].limit_s, ranks[0].idle_limit_s = 100.0, 25.0
    ranks[1].idle_s = 24.0
    assert find_stuck(ranks, now_s=0.0) == ()
    ranks[1].idle_s = 26.0
    assert find_stuck(ranks, now_s=0.0) == (1,)
    ranks[0].position_s = -20.0
    assert find_stuck(ranks, now_s=0.0) == (), "it was not waited for all that time"


def test_ranks_in_one_place_are_not_stuck_while_one_of_them_has_just_come_there():
    ranks = pulses((0.0, 8), (0.0, 8))
    for pulse in ranks:
        pulse.limit_s = 25.0
    ranks[1].position_s = -1.0
    assert find_stuck(ranks, now_s=0.0) == ()


def test_the_time_in_which_the_process_itself_was_stopped_counts_for_no_rank():
    clock = FakeClock()
    watchdog = Watchdog(None, 0, 2, clock=clock)
    watchdog._pulses = pulses((0.0, 1), (0.0, 1))
    for pulse in watchdog._pulses:
        pulse.position_s = 0.0
    clock.advance(3601.0)
    assert watchdog._after_pause(0.0) == 3601.0
    assert [(pulse.beat_s, pulse.position_s) for pulse in watchdog._pulses] == [(3600.0, 3600.0)] * 2
    clock.advance(2.0)
    watchdog._after_pause(3601.0)
    assert watchdog._pulses[0].beat_s == 3600.0, "a slow machine is not a pause"


_SCRIPT = """
import os, signal, sys, time
from voxelocity.parallel import join_world
def hang_here():
    time.sleep(300)
def work():
    until = time.monotonic() + 7.0
    while time.monotonic() < until:
        pass
with join_world() as world:
    world.set_silence(20.0)
    if len(sys.argv) > 2:
        with world.limit_waiting(60.0, idle_limit_s=5.0):
            if world.place.rank == 1:
                work() if sys.argv[1] == "work" else hang_here()
            world.gather(0)
        raise SystemExit(3)
    with world.limit_waiting(8.0):
        for _ in range(3):
            world.gather(0)
            time.sleep(0.7)
    if world.place.rank == 1:
        hang_here() if sys.argv[1] == "hang" else os.kill(os.getpid(), signal.SIGSTOP)
    with world.limit_waiting(8.0):
        world.gather(0)
"""


def test_a_rank_that_hangs_or_stops_ends_all_of_them_with_one_message_and_one_that_works_is_waited_for(tmp_path):
    hangs = r"rank 1 is at .*:\d+ \(hang_here\); check its disk"
    expected = {
        "hang": (1, rf"waited for rank 1 for 8 s; {hangs}"),
        "hang idly": (1, rf"waited for rank 1 for 5 s; {hangs}"),
        "stop": (-signal.SIGKILL, r"rank 1 \(process \d+ on \S+\) has not responded for 20 s; check its machine"),
    }
    started = {}
    for kind in ("work idly", *expected):
        memory = tmp_path / kind
        memory.mkdir()
        started[kind] = start_ranks(3, kind.split(), memory=memory, script=_SCRIPT)
    for kind, (status, message) in expected.items():
        ended = finish(started[kind], timeout_s=HANGS_S)
        assert [code for code, _, _ in ended] == [1, status, 1], kind
        err = "".join(err for _, _, err in ended)
        assert re.search(message, err), err
        assert err.count("voxelocity: ") == 1
    ended = finish(started["work idly"], timeout_s=HANGS_S)
    assert [status for status, _, _ in ended] == [3, 3, 3], ended


def test_a_launcher_says_nothing_about_a_rank_that_another_one_has_reported_and_killed(monkeypatch, capfd):
    def fails(*_):
        failures = {
            rank: ProcessFailure(local_rank=rank, pid=0, exitcode=status, error_file="")
            for rank, status in ((0, -signal.SIGKILL), (1, 1))
        }
        raise ChildFailedError("train", failures)

    monkeypatch.setattr(launch, "elastic_launch", lambda *_: fails)
    assert launch.run_ranks(["train"], num_ranks=2) == 1
    assert capfd.readouterr().err == ""
