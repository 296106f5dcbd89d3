"""One trial: a command in a process of its own, with limits. Running out of memory, crashing and hanging are outcomes.

The command writes an answer, a JSON file with what it measured (`answer.py`); everything else is seen from outside.
"""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from voxelocity.parallel import read_place
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.command import signal_name
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.core.errors import OutputError
from voxelocity_observe.core.host import cpu_budget, high_water_bytes
from voxelocity_observe.core.place import concerns_one_rank
from voxelocity_observe.core.plain import plain_data
from voxelocity_observe.core.quantities import bytes_text, duration_text
from voxelocity_observe.monitor.program import ProgramSampler

Kind = Literal["finished", "out_of_memory", "crashed", "hung"]

# Between two looks at the memory of a trial. A process's own high-water mark shows what happened in between.
_LOOK_EVERY_S = 0.05
# A limit must not be missed: that is one reading in 2 s for a program of 4 GiB.
_SHARING_COST = 0.02
_NUM_LAST_LINES, _TAIL_BYTES = 10, 8192
_MEMORY_WORDS = (
    "OutOfMemoryError",
    "out of memory",
    "MemoryError",
    "can't allocate memory",
    "Cannot allocate memory",
    "std::bad_alloc",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
# Asks the kernel to end the command if we are killed (PR_SET_PDEATHSIG), then becomes the command.
_TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"


@dataclass(frozen=True, kw_only=True)
class TrialLimits:
    """What a trial may take.

    Attributes:
        seconds: from its start to its end.
        host_bytes: main memory of all its processes together; 0 sets no limit.
        device_bytes: memory of the device; 0 sets no limit. The trial keeps it itself (`answer.limit_device_memory`).
    """

    seconds: float
    host_bytes: int = 0
    device_bytes: int = 0

    def with_headroom(self, share: float) -> TrialLimits:
        """The limits of memory lowered by this share."""
        kept = 1.0 - share
        return TrialLimits(
            seconds=self.seconds, host_bytes=int(kept * self.host_bytes), device_bytes=int(kept * self.device_bytes)
        )

    def hold(self, outcome: TrialOutcome) -> bool:
        """Whether the trial took no more memory than this."""
        taken = ((outcome.peak_host_bytes, self.host_bytes), (outcome.peak_device_bytes, self.device_bytes))
        return all(peak <= limit or not limit for peak, limit in taken)


@dataclass(frozen=True, kw_only=True)
class TrialOutcome:
    """What became of a trial.

    Attributes:
        kind: "finished" if there are measurements.
        seconds: it took.
        peak_host_bytes: the most main memory of all its processes.
        peak_device_bytes: the most memory of the device; 0 if it used none or did not say.
        measurements: by name, one value for each window or repeat.
        about: what else it said about itself, as plain data.
        reason: of a failure, with the last lines that it printed.
    """

    kind: Kind
    seconds: float
    peak_host_bytes: int = 0
    peak_device_bytes: int = 0
    measurements: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def is_finished(self) -> bool:
        return self.kind == "finished"

    def to_plain(self) -> dict[str, Any]:
        """As plain data for JSON."""
        plain: dict[str, Any] = plain_data(self, where="tune")
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """The outcome of `to_plain`."""
        measurements = {name: tuple(values) for name, values in plain["measurements"].items()}
        return cls(**{**plain, "measurements": measurements})


def run_trial(
    command: Sequence[str],
    *,
    answer: Path,
    log: Path,
    limits: TrialLimits,
    environ: Mapping[str, str] | None = None,
    clock: Clock = system_clock,
) -> TrialOutcome:
    """What became of the command, which ran in a process group of its own and is gone with everything it started.

    Blocks until its end or its time limit. If this process is killed, the kernel ends the command (on Linux).

    Args:
        command: no shell reads it.
        answer: the file that it writes, or does not; an earlier one is removed.
        log: receives what it prints.
        limits: what it may take.
        environ: variables besides those of every trial.
        clock: returns seconds, never going back.

    Raises:
        OutputError: the log cannot be written.
    """
    answer.unlink(missing_ok=True)
    begin_s = clock()
    try:
        with log.open("wb") as output:
            child = _start(command, {**trial_variables(), **(environ or {})}, output.fileno())
    except OSError as error:
        if error.errno in (errno.ENOMEM, errno.EAGAIN):
            reason = f"no process could be started ({error.strerror})"
            return TrialOutcome(kind="out_of_memory", seconds=clock() - begin_s, reason=reason)
        if error.filename == str(log) or error.errno == errno.ENOSPC:
            raise OutputError(f"tune: cannot write {log} ({error.strerror}); free some space there, or name another "
                              "folder with -o") from None  # fmt: skip
        reason = f"'{command[0]}' cannot be started ({error.strerror})"
        return TrialOutcome(kind="crashed", seconds=clock() - begin_s, reason=reason)
    watched = _Watched(child)
    try:
        why_ended = _wait(watched, limits, begin_s, clock)
    finally:
        watched.end()
    seconds = clock() - begin_s
    return _judged(child.returncode, why_ended, _read_answer(answer), _last_lines(log), limits, watched.peak, seconds)


def trial_variables() -> dict[str, str]:
    """Of every trial: it finds this package, and its threads wait as those of the command line do."""
    # A program of its own, even where a rank starts it.
    own = {name: value for name, value in os.environ.items() if not concerns_one_rank(name)}
    # As many as a rank has, to which torchrun gives one.
    threads = {} if read_place().is_alone else {"OMP_NUM_THREADS": str(cpu_budget())}
    waiting = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
    return {**waiting, **own, **threads, "PYTHONPATH": python_path(), "MLFLOW_DISABLE_TELEMETRY": "true"}


def _start(command: Sequence[str], environ: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    tied = [sys.executable, "-I", "-S", "-c", _TIED, *command] if sys.platform == "linux" else command
    return subprocess.Popen(
        tied,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environ),
        start_new_session=True,
    )


class _Watched:
    """A running trial, its memory, and its end."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child, self.peak = child, 0
        is_linux = sys.platform == "linux"
        self._sampler = ProgramSampler(child.pid, sharing_cost=_SHARING_COST) if is_linux else None
        self._status = Path(f"/proc/{child.pid}/status")
        # From the start, so that a stranger who gets the number of a process that ended is recognized.
        self.look()

    def look(self) -> int:
        """The most main memory up to now."""
        if self._sampler is not None:
            now = self._sampler.figures().memory_bytes
            self.peak = max(self.peak, now, high_water_bytes(self._status) or 0)
        return self.peak

    def end(self) -> None:
        """Ends everything that the trial started, also what has left its process group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        if self._sampler is not None:
            self.look()
            for pid in self._sampler.pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        self.child.wait()


def _wait(watched: _Watched, limits: TrialLimits, begin_s: float, clock: Clock) -> str:
    """Returns at the end of the child with "", or when it goes beyond a limit with the limit's name."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            watched.child.wait(timeout=_LOOK_EVERY_S)
            return ""
        if watched.look() > (limits.host_bytes or math.inf):
            return "memory"
        if clock() - begin_s > limits.seconds:
            return "time"


def _read_answer(path: Path) -> dict[str, Any]:
    """What the command wrote; empty if it wrote nothing that can be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _last_lines(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line for line in lines if line.strip())


def _judged(
    status: int,
    why_ended: str,
    answer: Mapping[str, Any],
    printed: str,
    limits: TrialLimits,
    peak_host_bytes: int,
    seconds: float,
) -> TrialOutcome:
    measurements = _measurements(answer.get("measurements"))
    peak_host_bytes = max(peak_host_bytes, int(answer.get("peak_host_bytes") or 0))
    last = "\n".join(printed.splitlines()[-_NUM_LAST_LINES:])

    def outcome(kind: Kind, reason: str = "", *, values: Mapping[str, tuple[float, ...]] = {}) -> TrialOutcome:
        return TrialOutcome(
            kind=kind,
            seconds=seconds,
            peak_host_bytes=peak_host_bytes,
            peak_device_bytes=int(answer.get("peak_device_bytes") or 0),
            measurements=values,
            about=answer.get("about") or {},
            reason=reason,
        )

    if why_ended == "memory" or (limits.host_bytes and peak_host_bytes > limits.host_bytes):
        return outcome(
            "out_of_memory",
            f"took {bytes_text(peak_host_bytes)}, more than the {bytes_text(limits.host_bytes)} allowed",
        )
    if why_ended == "time":
        return outcome("hung", f"not done after {duration_text(limits.seconds)}; it printed last:\n{last}")
    if answer.get("out_of_memory"):
        return outcome("out_of_memory", str(answer["out_of_memory"]))
    if status == 0 and measurements:
        return outcome("finished", values=measurements)
    if status == -signal.SIGKILL:
        return outcome("out_of_memory", "ended by SIGKILL, as the kernel does when memory is full")
    if status != 0 and any(words in printed for words in _MEMORY_WORDS):
        return outcome("out_of_memory", last)
    if status == 0:
        return outcome("crashed", f"ended without finite measurements; it printed last:\n{last}")
    how = f"ended by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    return outcome("crashed", f"{how}; it printed last:\n{last}")


def _measurements(found: object) -> dict[str, tuple[float, ...]]:
    """Values by name; empty if any of them is not a finite number, which proves nothing."""
    if not isinstance(found, dict):
        return {}
    measured = {str(name): values if isinstance(values, list) else [values] for name, values in found.items()}
    every = [value for values in measured.values() for value in values]
    if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in every):
        return {}
    return {name: tuple(map(float, values)) for name, values in measured.items() if values}
