"""Crafted inputs: how they are made, tried and counted.

A trial makes one file or folder and reads it. It must be read, or refused in words; anything else has a name here.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from voxelocity_observe.core.errors import VoxelocityError

OUTCOMES = ("read", "refused", "traceback", "hang", "crash", "silent", "executed", "outside", "wordy")
"""Only the first two are right. silent: read as something else, though the format has a checksum."""
RIGHT = OUTCOMES[:2]
ODD_VALUES = (
    None, True, -1, 0, 1.5, 1e400, -1e308, 10**30, float("nan"), "", "a\x00b", "../../etc/passwd", "\x1b[31m", "é" * 99,
    [], {}, [[]], {"": ""}, [None], "2001-99-99", "!!python/object:os.system", "1e400", [1, [2, [3]]], 2**63, "ball",
    "$__import__('os').system('touch ran')", "@a::b", [4096] * 3, "os:abort", "http://192.0.2.1:9/x", "/dev/zero",
)  # fmt: skip
_LONGEST_REFUSAL = 3000
# Seconds of CPU, so that a busy machine makes no hang; and of the clock, for what waits.
_MOST_CPU_S, _MOST_WAITING_S = 20.0, 240.0


def mutated_bytes(numbers: random.Random, content: bytes) -> bytes:
    """A few flips, cuts, repeats, zeros or foreign bytes."""
    changed = bytearray(content)
    for _ in range(numbers.randint(1, 4)):
        at = numbers.randrange(len(changed) + 1)
        stop = min(len(changed), at + numbers.choice((1, 2, 8, 100)))
        match numbers.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << numbers.randrange(8)
            case 1:
                del changed[at:stop]
            case 2:
                changed[at:at] = changed[at:stop]
            case 3:
                changed[at:stop] = bytes(stop - at)
            case 4:
                changed[at:stop] = numbers.randbytes(stop - at)
            case _:
                changed[at:at] = numbers.choice(
                    (b"[", b"{", b'"', b"\n", b"\xff\xfe", b"- &a *a", b"1e999", b"\x00", b",")
                )
    return bytes(changed)


def mutated_values(numbers: random.Random, values: Any) -> Any:
    """Plain data with one to three of its values replaced, removed, renamed or doubled."""
    changed = copy.deepcopy(values)
    for _ in range(numbers.randint(1, 3)):
        places = list(places_in(changed))
        if not places:
            break
        holder, key = numbers.choice(places)
        match numbers.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[f"{key}x"] = holder.pop(key)
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                # A copy, as the next change may be inside it.
                holder[key] = copy.deepcopy(numbers.choice(ODD_VALUES))
    return changed


def places_in(values: Any) -> Iterator[tuple[Any, Any]]:
    """Holder and key of every value inside."""
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, value in items:
        yield values, key
        yield from places_in(value)


def as_json(numbers: random.Random, values: Any) -> bytes:
    """Mutated values, or mutated bytes of them."""
    if numbers.random() < 0.7:
        return json.dumps(mutated_values(numbers, values)).encode()
    return mutated_bytes(numbers, json.dumps(values).encode())


Trial = Callable[[random.Random], Any]
"""Crafts one input and reads it; raises `SilentError` where the format has a checksum and the content is another."""


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes:
        name: as in the table.
        num_trials: of the whole suite.
        make: prepares a folder once; returns the trial.
        is_forked: whether each trial has a process of its own, as libraries may end it.
    """

    name: str
    num_trials: int
    make: Callable[[Path], Trial]
    is_forked: bool = False


class SilentError(AssertionError):
    """Raised by a trial: another content was read without a word."""


class _Hang(BaseException):
    pass


@dataclass
class Watch:
    """What Python is asked to do outside of a trial's folder, by audit events. One for each process."""

    inside: tuple[str, ...] = ()
    found: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.inside:
            return
        # From Python 3.13 on, subprocess starts its programs by posix_spawn where it can.
        if event in ("os.system", "os.exec", "os.spawn") or (
            event in ("subprocess.Popen", "os.posix_spawn") and arguments[0] != sys.executable
        ):
            self.found.append(("executed", f"{event} {arguments[:2]}"))
        elif event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
            self.found.append(("executed", f"{event} {arguments[-1]}"))
        elif event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
            if arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                self._check(event, arguments[0])
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree", "os.rename", "os.symlink"):
            for path in arguments[: 2 if event == "os.rename" else 1]:
                self._check(event, path)

    def _check(self, event: str, path: Any) -> None:
        place = os.path.realpath(os.fsdecode(path))
        if not place.startswith(self.inside):
            self.found.append(("outside", f"{event} {place}"))


_watch = Watch()
_is_hooked = False


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Watch]:
    """Within the block, notes what leaves the folder and Python's own temporary and compiled files."""
    global _is_hooked
    if not _is_hooked:
        sys.addaudithook(_watch)
        _is_hooked = True
    allowed = (str(folder), *(os.path.join(tempfile.gettempdir(), name) for name in ("tmp", "torchinductor")))
    _watch.inside, _watch.found = (*map(os.path.realpath, allowed), "/dev/null", "/dev/shm"), []
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield _watch
    finally:
        _watch.inside = ()
        sys.dont_write_bytecode = before


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def end(number: int, frame: Any) -> None:
        raise _Hang

    before = {number: signal.signal(number, end) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, _MOST_CPU_S)
    signal.setitimer(signal.ITIMER_REAL, _MOST_WAITING_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)


def outcome_of(trial: Trial, numbers: random.Random, folder: Path) -> tuple[str, str]:
    """One of `OUTCOMES`, and what it was."""
    with watched(folder) as watch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _alarm():
                trial(numbers)
            found, what = "read", ""
        except VoxelocityError as error:
            what = str(error)
            found = "refused" if 0 < len(what) < _LONGEST_REFUSAL else "wordy"
        except SilentError as error:
            found, what = "silent", str(error)
        except _Hang:
            found, what = "hang", ""
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            found, what = "traceback", "".join(traceback.format_exception(error)[-3:])
        if watch.found:
            found, what = watch.found[0]
    return found, what


def _forked(trial: Trial, numbers: random.Random, folder: Path) -> tuple[str, str]:
    """The outcome of a trial in a process of its own."""
    state = numbers.getstate()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        faulthandler.disable()
        try:
            found = outcome_of(trial, numbers, folder)
            os.write(writer, json.dumps(found).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        content = said.read()
    _, status = os.waitpid(child, 0)
    numbers.setstate(state)
    numbers.random()
    if os.WIFSIGNALED(status) or not content:
        return "crash", f"ended by signal {os.WTERMSIG(status)}"
    found, what = json.loads(content)
    return found, what


def try_kind(kind: Kind, folder: Path, num_trials: int) -> tuple[Counter[str], list[str]]:
    """How many trials had which outcome, and a line for each that was wrong. The same trials every time."""
    numbers = random.Random(kind.name)
    place = folder / kind.name.replace(" ", "_").replace("/", "_")
    place.mkdir(parents=True)
    counts: Counter[str] = Counter()
    wrong = []
    with (
        contextlib.chdir(place),
        mock.patch.dict(os.environ, XDG_CACHE_HOME=str(place / "cache")),
        _without_garbage_of_others(),
    ):
        trial = kind.make(place)
        for number in range(num_trials):
            found, what = (_forked if kind.is_forked else outcome_of)(trial, numbers, place)
            if any(path.name == "ran" for path in place.rglob("ran")):
                found, what = "executed", "a canary was made"
            counts[found] += 1
            if found not in RIGHT:
                wrong.append(f"{kind.name} {number}: {found}: {what[-900:]}")
    shutil.rmtree(place, ignore_errors=True)
    return counts, wrong


@contextlib.contextmanager
def _without_garbage_of_others() -> Iterator[None]:
    """Within the block, no object that is left from before is collected, which may remove its folder."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def table(counts: Mapping[str, Counter[str]]) -> str:
    """Kinds and outcomes, one line each."""
    lines = [f"| kind | trials | {' | '.join(OUTCOMES)} |", f"|---{'|---' * (len(OUTCOMES) + 1)}|"]
    rows = {**counts, "all": sum(counts.values(), Counter())}
    for name, found in rows.items():
        lines.append(f"| {name} | {found.total()} | {' | '.join(str(found[outcome]) for outcome in OUTCOMES)} |")
    return "\n".join(lines)
