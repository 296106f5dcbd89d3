"""One part of the demonstration: a command in a process of its own, followed and timed. Judges nothing."""

from __future__ import annotations

import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from voxelocity.report import LabeledRun
from voxelocity_observe.core.environment import environment, python_path
from voxelocity_observe.core.errors import VoxelocityError
from voxelocity_observe.core.events import events_path, read_events

_POLL_S = 0.3
_NUM_LAST_LINES = 10
_LINE = re.compile(
    r"^epoch +\d+ +(?P<at>[\d.]+) s  loss \S+  Dice (?P<dice>[\d.]+)(?:  (?P<each>[\d.]+) s an epoch)?",
    re.MULTILINE,
)
Follow = Callable[[float, float], None]


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a part took.

    Attributes:
        name: of the part.
        wall_s: until it ended.
        cpu_s: of all cores, in this process and in those that it started.
    """

    name: str
    wall_s: float
    cpu_s: float


class PartTimes:
    """The parts so far, in order."""

    def __init__(self) -> None:
        self.spent: list[Spent] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """PartTimes the block as one part."""
        start_s, start_cpu_s = time.perf_counter(), _cpu_s()
        yield
        self.spent.append(Spent(name=name, wall_s=time.perf_counter() - start_s, cpu_s=_cpu_s() - start_cpu_s))


def _cpu_s() -> float:
    # Children count once they have ended.
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def python_command(*words: object) -> list[str]:
    """A command of this Python."""
    return [sys.executable, *map(str, words)]


def shown_command(command: Sequence[str]) -> str:
    """The command as a reader types it."""
    words = list(command[1:])
    words = ["voxelocity", *words[2:]] if words[:2] == ["-m", "voxelocity"] else ["python", *words]
    return shlex.join("python" if word == sys.executable else word for word in words)


def run_part(
    command: Sequence[str],
    log: Path,
    *,
    history: Callable[[], Sequence[tuple[float, float]]] = tuple,
    on_validation: Follow = lambda seconds, dice: None,
) -> float:
    """Runs a command to its end; what it prints goes into `log`.

    Args:
        command: to run.
        log: file for its output, replaced.
        history: (seconds, Dice) of the validations so far.
        on_validation: called with each of them, soon after it is known.

    Returns:
        Wall seconds.

    Raises:
        VoxelocityError: it failed; its last lines are in the text.
    """
    start_s, num_known = time.perf_counter(), 0
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=_environ())
        try:
            is_over = False
            while not is_over:
                try:
                    process.wait(timeout=_POLL_S)
                    is_over = True
                except subprocess.TimeoutExpired:
                    pass
                known = list(history())
                for seconds, dice in known[num_known:]:
                    on_validation(seconds, dice)
                num_known = max(num_known, len(known))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-_NUM_LAST_LINES:])
        raise VoxelocityError(
            f"demo: `{shown_command(command)}` ended with status {process.returncode}; its output is in {log}:\n{last}"
        )
    return time.perf_counter() - start_s


def _environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path()}


def script_history(log: Path) -> list[tuple[float, float]]:
    """(seconds, Dice) of each validation that a script has printed."""
    return [(float(found["at"]), float(found["dice"])) for found in _LINE.finditer(_text(log))]


def run_history(folder: Path) -> list[tuple[float, float]]:
    """(seconds, Dice) of each validation of a run that may still be going."""
    path = events_path(folder)
    events = read_events(path) if path.exists() else ()
    return [(float(e["time_s"]), float(e["mean_dice"])) for e in events if e["event"] == "validation"]


def script_run(label: str, log: Path, *, wall_s: float, target_dice: float) -> LabeledRun:
    """What a script printed, as a run to compare."""
    history = script_history(log)
    epochs_s = sorted(float(found["each"]) for found in _LINE.finditer(_text(log)) if found["each"])
    return LabeledRun(
        label=label,
        seconds_to_target=next((seconds for seconds, dice in history if dice >= target_dice), None),
        seconds_per_epoch=epochs_s[len(epochs_s) // 2] if epochs_s else None,
        wall_s=wall_s,
        dice_history=tuple(history),
        machine=environment(),
    )


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
