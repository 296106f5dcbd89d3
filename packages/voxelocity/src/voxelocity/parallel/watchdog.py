"""Ends this process with the reason if a rank hangs: an exchange of torch.distributed cannot be left otherwise."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType
from typing import Any, Self, cast

import psutil
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.environment import package_folders

_BEAT_S = 1.0
_STORE_TIMEOUT = timedelta(seconds=5)
_NO_LIMIT_S = 1800.0
# Long enough for the message of the rank that reports.
_REPORTED_S = 3.0
# A thread that was not run for longer was stopped.
_PAUSE_S = 5.0
# Of one core. Threads that only look after a training, such as the watchdog's, take less.
_BUSY_SHARE = 0.1
_ADVICE = "the last checkpoint is intact, and the same command continues from it"


@dataclass(kw_only=True)
class Pulse:
    """What is known of a rank.

    Attributes:
        process: host name, process namespace and number; "" until it is known.
        beat: of its last message; -1 after it has left.
        beat_s: when that changed, by the clock of this process.
        position: how many places in the code it has come to.
        position_s: when that, or its limit, changed.
        limit_s: how long it may wait there for the others.
        idle_limit_s: the same for others that do nothing meanwhile.
        idle_s: for how long it has done nothing while others waited for it.
    """

    process: str = ""
    beat: int = 0
    beat_s: float
    position: int = 0
    position_s: float
    limit_s: float = _NO_LIMIT_S
    idle_limit_s: float = math.inf
    idle_s: float = 0.0

    @property
    def has_left(self) -> bool:
        return self.beat < 0

    def limit_for(self, other: Pulse) -> float:
        """How long this rank may wait for that one."""
        return min(self.limit_s, self.idle_limit_s if other.idle_s > self.idle_limit_s else self.limit_s)


def find_silent(
    pulses: Sequence[Pulse], rank: int, *, now_s: float, answered_s: float, silence_s: float
) -> tuple[int, ...]:
    """The ranks that have stopped, or whose machine has: not even their watchdogs send anything.

    Args:
        pulses: by rank.
        rank: of this process.
        now_s: by the clock of this process.
        answered_s: when the store last answered, which is at rank 0 or its launcher.
        silence_s: that is too long.
    """
    if now_s - answered_s > silence_s:
        return (0,) if rank > 0 else ()
    return tuple(
        number
        for number, pulse in enumerate(pulses)
        if number != rank and not pulse.has_left and now_s - pulse.beat_s > silence_s
    )


def find_stuck(pulses: Sequence[Pulse], *, now_s: float) -> tuple[int, ...]:
    """The ranks that others have waited for longer than they may, or all of them if they wait for each other."""
    present = {number: pulse for number, pulse in enumerate(pulses) if not pulse.has_left}
    least = min(pulse.position for pulse in present.values())
    ahead = [pulse for pulse in present.values() if pulse.position > least]
    if not ahead:
        is_stuck = all(now_s - pulse.position_s > pulse.limit_s for pulse in present.values())
        return tuple(present) if is_stuck else ()
    return tuple(
        number
        for number, pulse in present.items()
        if pulse.position == least
        and any(now_s - max(pulse.position_s, other.position_s) > other.limit_for(pulse) for other in ahead)
    )


@dataclass(eq=False)
class Watchdog:
    """Two threads of a rank, within a `with` block: one exchanges signs of life, the other judges them.

    A rank that does not even send signs for `silence_s` has stopped, or its machine has: the first of the others
    reports it, and kills it if it can. A rank that sends them, but which another one has waited for longer than that
    one may, reports itself, with the place in its code. All end with status 1, and at once: Python's own end would wait
    for the exchange that never ends.

    Attributes:
        store: at which the ranks have met.
    """

    store: Store
    rank: int
    size: int
    silence_s: float = 25.0
    clock: Clock = system_clock

    def __post_init__(self) -> None:
        now_s = self.clock()
        self._pulses = [Pulse(beat_s=now_s, position_s=now_s) for _ in range(self.size)]
        self._answered_s = now_s
        self._idleness = Idleness(self.clock)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._watched = threading.get_ident()
        self._exchanging = threading.Thread(target=self._exchange, name="watchdog: exchange", daemon=True)
        self._exchanging.start()
        threading.Thread(target=self._judge, name="watchdog: judge", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        # If the store does not answer, the thread is left behind.
        self._exchanging.join(_BEAT_S)

    def limit(self, limit_s: float, idle_limit_s: float = math.inf) -> tuple[float, float]:
        """Sets how long this rank may wait for the others, from now on; returns the limits before.

        Args:
            limit_s: for any other.
            idle_limit_s: for one that neither computes nor waits for a disk meanwhile.
        """
        pulse = self._pulses[self.rank]
        before = pulse.limit_s, pulse.idle_limit_s
        pulse.limit_s, pulse.idle_limit_s, pulse.position_s = limit_s, idle_limit_s, self.clock()
        return before

    def advance(self) -> None:
        """This rank has come to another place in the code, and what comes next may wait for the others."""
        pulse = self._pulses[self.rank]
        pulse.position, pulse.position_s = pulse.position + 1, self.clock()

    def _exchange(self) -> None:
        # Calls on a connection wait for each other, so this one has its own. torch's stubs lack its methods.
        store = cast("Any", self.store).clone()
        store.set_timeout(_STORE_TIMEOUT)
        keys = [f"voxelocity/pulse/{number}" for number in range(self.size)]
        process, beat = _this_process(), 0
        while not self._ended.is_set():
            beat += 1
            try:
                self._send(store, keys[self.rank], process, beat)
                if store.check(keys):
                    # Stores in files cannot give several at once.
                    found = store.multi_get(keys) if store.has_extended_api() else map(store.get, keys)
                    for number, text in enumerate(found):
                        self._hear(number, *json.loads(text))
                self._answered_s = self.clock()
            except dist.DistNetworkError:
                # It is gone, and each further call would write a stack to the terminal.
                return
            except RuntimeError:
                # It did not answer in time; the age of its last answer counts.
                pass
            self._ended.wait(_BEAT_S)
        with contextlib.suppress(RuntimeError):
            self._send(store, keys[self.rank], process, -1)

    def _send(self, store: Any, key: str, process: str, beat: int) -> None:
        pulse = self._pulses[self.rank]
        store.set(key, json.dumps([process, beat, pulse.position, pulse.limit_s, pulse.idle_limit_s, pulse.idle_s]))

    def _hear(self, number: int, process: str, beat: int, *heard: Any) -> None:
        if number == self.rank:
            return
        pulse, now_s = self._pulses[number], self.clock()
        position, limit_s, pulse.idle_limit_s, pulse.idle_s = heard
        pulse.process = process
        if beat != pulse.beat:
            pulse.beat, pulse.beat_s = beat, now_s
        if (position, limit_s) != (pulse.position, pulse.limit_s):
            pulse.position, pulse.limit_s, pulse.position_s = position, limit_s, now_s

    def _judge(self) -> None:
        before_s = self.clock()
        while not self._ended.wait(_BEAT_S):
            before_s = self._after_pause(before_s)
            silent = find_silent(
                self._pulses, self.rank, now_s=before_s, answered_s=self._answered_s, silence_s=self.silence_s
            )
            if silent:
                self._end_without(silent)
            self._look_at_itself()
            stuck = find_stuck(self._pulses, now_s=before_s)
            if self.rank in stuck:
                self._end_stuck(stuck)

    def _look_at_itself(self) -> None:
        own = self._pulses[self.rank]
        if any(pulse.position > own.position for pulse in self._pulses):
            own.idle_s = self._idleness.seconds()
        else:
            self._idleness.restart()
            own.idle_s = 0.0

    def _after_pause(self, before_s: float) -> float:
        """The time now. If this process was stopped meanwhile, as SLURM suspends jobs, that time counts for no rank."""
        now_s = self.clock()
        paused_s = now_s - before_s - _BEAT_S
        if paused_s > _PAUSE_S:
            self._answered_s += paused_s
            self._idleness.restart()
            for pulse in self._pulses:
                pulse.beat_s, pulse.position_s = pulse.beat_s + paused_s, pulse.position_s + paused_s
        return now_s

    def _end_without(self, silent: Sequence[int]) -> None:
        first = next(number for number in range(self.size) if number not in silent)
        if self.rank != first:
            self._end_later()
            return
        names = " and ".join(f"rank {number}{self._process_words(number)}" for number in silent)
        _say(f"{names} has not responded for {self.silence_s:.0f} s; check its machine; {_ADVICE}")
        for number in silent:
            space, _, process_id = self._pulses[number].process.rpartition(" ")
            if space and space == _this_process().rpartition(" ")[0]:
                # Its launcher would wait for it.
                with contextlib.suppress(OSError):
                    os.kill(int(process_id), signal.SIGKILL)
        os._exit(1)

    def _end_stuck(self, stuck: Sequence[int]) -> None:
        if self.rank != stuck[0]:
            self._end_later()
            return
        names = " and ".join(f"rank {number}" for number in stuck)
        present = [(number, pulse) for number, pulse in enumerate(self._pulses) if not pulse.has_left]
        limits = [pulse.limit_for(self._pulses[self.rank]) for number, pulse in present if number not in stuck]
        waited = f"the others have waited for {names}" if limits else f"{names} have not continued"
        limit_s = min(limits or [pulse.limit_s for _, pulse in present])
        _say(
            f"{waited} for {limit_s:.0f} s; rank {self.rank} is at {self._location()}; check its disk and its "
            f"device; {_ADVICE}"
        )
        os._exit(1)

    def _end_later(self) -> None:
        """Ends this process after the one that reports, unless it ends by itself."""
        if not self._ended.wait(_REPORTED_S):
            os._exit(1)

    def _process_words(self, number: int) -> str:
        process = self._pulses[number].process
        return f" (process {process.rpartition(' ')[2]} on {process.partition(' ')[0]})" if process else ""

    def _location(self) -> str:
        """Where the watched thread is: the innermost place, and the innermost one in this package."""
        frames = list(_outward(sys._current_frames().get(self._watched)))
        folders = tuple(map(str, package_folders()))
        ours = next((frame for frame in frames if frame.f_code.co_filename.startswith(folders)), None)
        locations = [_location_of(frame) for frame in dict.fromkeys([*frames[:1], *([ours] if ours else [])])]
        return ", called from ".join(locations) or "an unknown place"


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _location_of(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"


def _this_process() -> str:
    """Processes of one host and one namespace can kill each other."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{socket.gethostname()} {space} {os.getpid()}"


def _say(text: str) -> None:
    print(f"voxelocity: parallel: {text}", file=sys.stderr, flush=True)


class Idleness:
    """Seconds since this process last did something: it or one it has started computed, or waited for a disk.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """It counts from now on."""
        self._busy_s = self._seen_s = self._clock()
        self._cpu_s: float | None = None

    def seconds(self) -> float:
        """Call it about once a second."""
        now_s, before_s = self._clock(), self._cpu_s
        self._cpu_s, waits_for_disk = _cpu_and_disk()
        is_busy = before_s is None or self._cpu_s - before_s > _BUSY_SHARE * (now_s - self._seen_s)
        self._seen_s = now_s
        if is_busy or waits_for_disk:
            self._busy_s = now_s
        return now_s - self._busy_s


def _cpu_and_disk() -> tuple[float, bool]:
    """CPU seconds of this process and those it has started, and whether the first thread of one waits for a disk."""
    process, cpu_s, waits_for_disk = psutil.Process(), 0.0, False
    for member in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = member.cpu_times()
            # Children that have ended count for their parent.
            cpu_s += times.user + times.system + times.children_user + times.children_system
            waits_for_disk = waits_for_disk or member.status() == psutil.STATUS_DISK_SLEEP
    return cpu_s, waits_for_disk
