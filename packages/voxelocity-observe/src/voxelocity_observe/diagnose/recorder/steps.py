"""Steps: where one ends and the next begins, which of them count, and what is written of each.

A step ends when an optimizer's step ends. Optimizers that step one after the other on the same batch (such as
those of a GAN) end one step together. This is known only when the next batch is fetched or an optimizer steps again, so
a step is closed a moment after it has ended. Closing happens in the training thread, where the program may be ended;
the device's stamps are read later still, when the device has passed them.

The first steps are warm-up: at least `warmup_steps`, then until three in a row are within a quarter of their median, at
most `warmup_seconds`.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Callable, Protocol

from .networks import NO_WINDOWS
from .process import Settings
from .timeline import Group, Ledger, Stretch, add_up, divide, keys_of_training
from .writer import Writer

DATA_PARTS = ("wait", "worker")
"""In which items and batches are made, of tensors in host memory."""

_SETTLED = 0.25
_MAX_SHAPES = 64
_MAX_DEVICE_WAIT_S = 30.0

_current: Steps | None = None
_is_worker = False


class Moment(Protocol):
    """Where the program is now; this module is one. Asking costs about 0.1 microseconds, and any thread may."""

    def current_part(self) -> str:
        """What the training thread does.

        A part of a step ("wait", "copy", "forward", "backward", "optimizer", "other"), "validation", "saving" or "epoch
        start" between steps, "" where nothing is recorded; in a loader's worker process always "worker".
        """

    def counted_steps(self) -> int:
        """Steps counted so far."""

    def is_counting(self) -> bool:
        """Whether what is seen now counts: steps are counted, or this is a worker."""


def current_part() -> str:
    """As in `Moment`."""
    if _current is None:
        return "worker" if _is_worker else ""
    ledger = _current.ledger
    return ledger.mode or ledger.part


def counted_steps() -> int:
    """As in `Moment`."""
    return 0 if _current is None else _current.num_counted


def is_counting() -> bool:
    """As in `Moment`."""
    return _is_worker if _current is None else _current.phase == "watched"


def training_thread() -> int:
    """Identifier of the thread that trains, 0 where nothing is recorded."""
    return 0 if _current is None else _current.ledger.thread


def watch(steps: Steps | None, *, is_worker: bool = False) -> None:
    """Makes these the steps that the functions above report on; None for none."""
    global _current, _is_worker
    _current, _is_worker = steps, is_worker


class Steps:
    """Closes steps and passes, and writes them.

    Args:
        after_step: called in the training thread after a step was closed, with its seconds on the host and its parts;
            it may change `phase`, and may raise to end the program.
        start_age_s: what is added to the ledger's clock to give seconds since the process began.
    """

    def __init__(
        self,
        ledger: Ledger,
        writer: Writer,
        settings: Settings,
        *,
        after_step: Callable[[float, dict[str, float]], None],
        start_age_s: float,
    ) -> None:
        self.ledger = ledger
        self.phase = "warm-up"
        self.num_steps = 0
        self.num_counted = 0
        self.num_forwards = 0
        self.num_backwards = 0
        self.num_synced = 0
        self.num_batches = 0
        self.counted_s = 0.0
        self.own_s = 0.0
        self.training_keys: set[int] = set()
        self.kinds_counted: set[str] = set()
        self.shapes: dict[tuple[int, ...], int] = {}
        self.resident_s: list[float] = []
        self._writer = writer
        self._settings = settings
        self._after_step = after_step
        self._start_age_s = start_age_s
        self._first_s: float | None = None
        self._recent: deque[float] = deque(maxlen=3)
        self._steppers: set[int] = set()
        self._num_ended = 0
        self._pending: deque[tuple[Group, str, dict[str, float]]] = deque()
        self._opened: float | None = None
        self._put_off: tuple[float, dict[str, float]] | None = None

    def optimizer_begins(self, optimizer: Any) -> None:
        """Closes the step before, if this optimizer ended it already."""
        if self._put_off is not None or (self._num_ended and id(optimizer) in self._steppers):
            self.settle()

    def optimizer_ended(self, optimizer: Any) -> None:
        """The step has ended here, unless another optimizer steps on the same batch."""
        self._steppers.add(id(optimizer))
        self.ledger.cut("step")
        self._num_ended = len(self.ledger.open) - 1

    def settle(self, *, may_end: bool = True) -> None:
        """Closes the step that has ended, if one has. Call this before anything new begins.

        Args:
            may_end: whether the program may be ended here. Within a saving it may not: the file to be replaced may
                already be open and empty, or the previous one deleted. `after_step` is then called at the next place.
        """
        if may_end and self._put_off is not None:
            put_off, self._put_off = self._put_off, None
            self._end_step(*put_off)
        if not self._num_ended:
            return
        started_s = self.ledger.clock()
        seconds, parts = self._close()
        self._write_settled()
        if self.phase == "watched":
            self.own_s += self.ledger.clock() - started_s
        elif self.phase == "warm-up":
            self._warm_up(seconds)
        if may_end:
            self._end_step(seconds, parts)
        else:
            self._put_off = seconds, parts

    def _end_step(self, seconds: float, parts: dict[str, float]) -> None:
        num_counted, started_s = self.num_counted, self.ledger.clock()
        self._after_step(seconds, parts)
        if num_counted and self.phase == "watched":
            # What is looked at after a step takes time of the next one.
            self.own_s += self.ledger.clock() - started_s

    def _close(self) -> tuple[float, dict[str, float]]:
        """Divides what led to the end of the step. Returns the step's seconds and parts on the host."""
        ledger, count = self.ledger, self._num_ended
        stretches, ledger.open = ledger.open[:count], ledger.open[count:]
        self._num_ended = 0
        self._steppers.clear()
        self.training_keys |= keys_of_training(stretches)
        parts: dict[str, float] = {}
        for group in divide(stretches, self.training_keys, has_stepped=True):
            host = self._host_parts(group)
            if group.kind == "step":
                parts = host
                self._count(group)
            elif self.phase == "watched":
                self.kinds_counted.add(group.kind)
            self._pending.append((group, self.phase, host))
        seconds = sum(parts.values())
        if self.phase == "watched":
            self.num_counted += 1
            self.counted_s += seconds
        return seconds, parts

    def restart(self) -> None:
        """Discards what happened since the last step's end, such as the recorder's own work."""
        self._num_ended = 0
        self._steppers.clear()
        self.ledger.start(label="step", thread=self.ledger.thread)

    def finish(self) -> None:
        """Writes all that was seen: what is open at the end of the program, and what waits for the device."""
        now_s = self.ledger.clock()
        if self._num_ended:
            self._close()
        for group in self._open_passes():
            self._pending.append((group, self.phase, self._host_parts(group, now_s)))
        self._wait_for_device()
        self._write_settled(is_last=True)

    def counted_text(self) -> str:
        """How many steps were counted, in words."""
        return "1 step was counted" if self.num_counted == 1 else f"{self.num_counted} steps were counted"

    def tell_unseen(self, text: str) -> None:
        """Writes what could not be seen, and why."""
        self._writer.write("unseen", text=text)

    def write(self) -> None:
        """Event `open pass`: a validation that has run for a while, so that it is known if the program is killed.

        Called in the writing thread.
        """
        now_s = self.ledger.clock()
        passes = [group for group in self._open_passes() if group.kind == "validation"]
        if passes and passes[-1].stretches[0].start_s != self._opened:
            self._opened = None
        if passes and now_s - passes[-1].stretches[0].start_s > 1.0:
            self._opened = passes[-1].stretches[0].start_s
            host = self._host_parts(passes[-1], now_s)
            self._writer.write("open pass", **self._pass_fields(passes[-1], host))

    def _open_passes(self) -> list[Group]:
        # In this order: the training thread may close the step meanwhile, and then cuts the list first.
        first = self._num_ended
        stretches = list(self.ledger.open)[first:]
        if not stretches or not any(s.num_forwards or s.label == "save" for s in stretches):
            return []
        keys = self.training_keys | keys_of_training(stretches)
        return [group for group in divide(stretches, keys, has_stepped=False) if group.kind != "step"]

    def _count(self, group: Group) -> None:
        self.num_steps += 1
        if self._first_s is None:
            self._first_s = group.stretches[0].start_s
        if self.phase == "watched":
            for stretch in group.stretches:
                self.num_forwards += stretch.num_learning
                self.num_backwards += stretch.num_backwards
                self.num_synced += stretch.num_synced
                self.num_batches += stretch.has_batch
                for shape, count in stretch.shapes.items():
                    if shape in self.shapes or len(self.shapes) < _MAX_SHAPES:
                        self.shapes[shape] = self.shapes.get(shape, 0) + count

    def _warm_up(self, seconds: float) -> None:
        self._recent.append(seconds)
        if self.num_steps < self._settings.warmup_steps:
            return
        middle = sorted(self._recent)[len(self._recent) // 2]
        has_settled = len(self._recent) == 3 and max(abs(s - middle) for s in self._recent) <= _SETTLED * middle
        assert self._first_s is not None
        if has_settled or self.ledger.clock() - self._first_s >= self._settings.warmup_seconds:
            self.phase = "watched"

    def _wait_for_device(self) -> None:
        """Waits until it has passed the last stamp: watching is over, and this may take as long as a few steps."""
        device, deadline_s = self.ledger.device, self.ledger.clock() + _MAX_DEVICE_WAIT_S
        stretches = [stretch for group, _, _ in self._pending for stretch in group.stretches if stretch.end is not None]
        while stretches and not stretches[-1].is_settled(device) and self.ledger.clock() < deadline_s:
            time.sleep(0.001)

    def _write_settled(self, *, is_last: bool = False) -> None:
        device = self.ledger.device
        while self._pending:
            group, phase, host = self._pending[0]
            if not is_last and not all(stretch.is_settled(device) for stretch in group.stretches):
                return
            self._pending.popleft()
            if group.kind == "step":
                self._write_step(group.stretches, phase, host)
            else:
                self._writer.write("pass", **self._pass_fields(group, host))
            for stretch in group.stretches:
                stretch.release(device)

    def _write_step(self, stretches: list[Stretch], phase: str, host: dict[str, float]) -> None:
        parts = self._parts(stretches, host)
        images = sum(stretch.num_images for stretch in stretches)
        if phase == "resident":
            self.resident_s.append(sum(parts.values()))
        self._writer.write(
            "step",
            start_s=_round(stretches[0].start_s + self._start_age_s),
            seconds=_round(sum(parts.values())),
            parts=(rounded := _rounded(parts)),
            host_parts=rounded if parts is host else _rounded(host),
            num_images=images or None,
            phase=phase,
        )

    def _pass_fields(self, group: Group, host: dict[str, float]) -> dict[str, Any]:
        stretches = group.stretches
        parts = self._parts(stretches, host)
        shapes = add_up([stretch.shapes for stretch in stretches])
        largest = sorted(shapes.items(), key=lambda item: -item[1])[:_MAX_SHAPES]
        windows = next((stretch.windows for stretch in stretches if stretch.windows is not None), NO_WINDOWS)
        return {
            "kind": group.kind,
            "start_s": _round(stretches[0].start_s + self._start_age_s),
            "seconds": _round(sum(parts.values())),
            "num_forwards": sum(stretch.num_forwards for stretch in stretches),
            "parts": _rounded(parts),
            "has_gradients": any(stretch.has_gradients for stretch in stretches),
            "batch_shapes": [[list(shape), count] for shape, count in largest],
            "where": next((stretch.where for stretch in stretches if stretch.where), ""),
            "overlap": round(windows.overlap, 4),
            "windows_where": windows.place.where,
            "windows_line": windows.place.line,
            "windows_call": windows.call,
            "windows_variable": windows.variable,
            "volume": windows.volume,
        }

    def _parts(self, stretches: list[Stretch], host: dict[str, float]) -> dict[str, float]:
        """Parts on the device's timeline; the host's if there is no device, or it has not got that far."""
        device = self.ledger.device
        if device is None or any(stretch.end is None or not stretch.is_settled(device) for stretch in stretches):
            return host
        return add_up([stretch.parts(device) for stretch in stretches])

    @staticmethod
    def _host_parts(group: Group, now_s: float = 0.0) -> dict[str, float]:
        return add_up([stretch.host_parts(now_s) for stretch in group.stretches])


def _round(seconds: float) -> float:
    return round(seconds, 7)


def _rounded(parts: dict[str, float]) -> dict[str, float]:
    return {part: round(seconds, 7) for part, seconds in parts.items()}
