"""In which part of a step the training thread is and since when, on the host and on the device's own timeline.

Hooks write into the thread's `Ledger`. It cuts time into stretches, at all moments at which a step or a validation may
begin or end. Which of them a stretch belongs to is often known only later; `divide` decides.

Only one thread has a ledger. A hook checks `ledger.depth or get_ident() != ledger.thread` and does nothing if that is
true, so work of other threads, and work within a part, costs two comparisons.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import get_ident
from typing import Any, Callable, Literal, NamedTuple, TypeVar

_Key = TypeVar("_Key")
_Number = TypeVar("_Number", int, float)

_POOL_SIZE = 4096
_FOLD_AT = 512

Entry = tuple[float, str, Any]
"""Start (host seconds), part, and stamp of the device."""

Kind = Literal["step", "validation", "saving", "epoch start"]

_FETCHES = ("fetch", "first")
_PLAIN = ("step", "fetch", "batch")
_OPENINGS = ("iter", "ready", "first", "batch")


class CudaDevice:
    """CUDA events on the stream that is current when they are taken, from a pool.

    A stamp is a mark in the queue of the device, which runs in parallel with the host; None is one that could not be
    taken. Nothing here waits.
    """

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._pool: list[Any] = []

    def stamp(self) -> Any:
        # An event recorded while a graph is captured becomes part of the graph.
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._pool.pop() if self._pool else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def is_done(self, stamp: Any) -> bool:
        return bool(stamp.query())

    def seconds(self, earlier: Any, later: Any) -> float:
        return float(earlier.elapsed_time(later)) / 1e3

    def release(self, stamps: list[Any]) -> None:
        room = _POOL_SIZE - len(self._pool)
        self._pool.extend(stamp for stamp in stamps[: max(room, 0)] if stamp is not None)


class Stretch:
    """The time of the thread between two moments at which a step or a validation may begin or end.

    Attributes:
        label: what began it: "start" (recording), "step" (an optimizer's step ended), "eval" and "train" (called on
            the network), "iter" (a loader is made ready), "ready" (it is), "fetch" (of a batch), "first" (fetch of
            the first batch of a loader that works ahead), "batch" (that one is there), "save" and "saved",
            "forward" (the network's first call of all).
        key: of the loader, -1 where there is none.
        has_batch: whether the fetch gave a batch.
        num_forwards: calls of a network; `num_evaluating` of them in evaluation mode or without gradients.
        num_backwards: calls of backward.
        num_synced: learning calls of a network whose backward sums gradients over all ranks.
        windows: how the windows of an evaluating call overlap, as far as known.
        has_gradients: whether an evaluating call recorded gradients.
        shapes: shapes of the network's inputs, with counts.
    """

    def __init__(self, label: str, key: int, where: str, now_s: float, part: str, stamp: Any) -> None:
        self.label = label
        self.key = key
        self.where = where
        self.start_s = now_s
        self.entries: list[Entry] = [(now_s, part, stamp)]
        self.end: tuple[float, Any] | None = None
        self.has_batch = False
        self.has_gradients = False
        self.num_forwards = self.num_evaluating = self.num_backwards = self.num_images = self.num_synced = 0
        self.windows: Any = None
        self.shapes: dict[tuple[int, ...], int] = {}
        self._host: dict[str, float] = {}
        self._stream: dict[str, float] = {}

    @property
    def num_learning(self) -> int:
        return self.num_forwards - self.num_evaluating

    def add(self, entry: Entry, device: CudaDevice | None) -> None:
        """The thread enters another part."""
        self.entries.append(entry)
        if len(self.entries) >= _FOLD_AT:
            self._fold(device)

    def host_parts(self, now_s: float = 0.0) -> dict[str, float]:
        """Seconds by part as the host spent them, until the end or `now_s`."""
        # The writing thread asks too, while the list grows.
        entries = self.entries
        return _sums(entries, _host_times(entries, self.end[0] if self.end else now_s), self._host)

    def is_settled(self, device: CudaDevice | None) -> bool:
        """Whether the device has passed the end."""
        if device is None or self.end is None:
            return self.end is not None
        return self.end[1] is None or device.is_done(self.end[1])

    def parts(self, device: CudaDevice | None) -> dict[str, float]:
        """Seconds by part on the device's timeline, or the host's without a device. Call this once it is settled."""
        assert self.end is not None
        if device is None or self.entries[0][2] is None:
            return self.host_parts()
        return _sums(self.entries, _stream_times(self.entries, self.end[1], device), self._stream)

    def release(self, device: CudaDevice | None) -> None:
        """Releases the stamps; the one at the end belongs to the next stretch."""
        if device is not None:
            device.release([entry[2] for entry in self.entries])
        self.entries = self.entries[:1]

    def _fold(self, device: CudaDevice | None) -> None:
        """Sums what is over, so a validation of many thousand windows takes no memory."""
        last = self.entries[-1]
        if device is not None and self.entries[0][2] is not None:
            if last[2] is None or not device.is_done(last[2]):
                return
            over = self.entries[:-1]
            self._stream = _sums(over, _stream_times(over, last[2], device), self._stream)
            device.release([entry[2] for entry in over])
        over = self.entries[:-1]
        self._host = _sums(over, _host_times(over, last[0]), self._host)
        self.entries = [last]


def _sums(entries: list[Entry], times: list[float], before: dict[str, float]) -> dict[str, float]:
    """Seconds by part, added to those `before`; `times` are when each entry begins, and when the last one ends."""
    sums = dict(before)
    for (_, part, _), since_s, now_s in zip(entries, times, times[1:]):
        sums[part] = sums.get(part, 0.0) + now_s - since_s
    return sums


def _host_times(entries: list[Entry], end_s: float) -> list[float]:
    return [*(entry[0] for entry in entries), max(end_s, entries[-1][0])]


def _stream_times(entries: list[Entry], end: Any, device: CudaDevice) -> list[float]:
    times = [0.0]
    for stamp in (*(entry[2] for entry in entries[1:]), end):
        # A stamp that could not be taken, or one on another stream that ran ahead, takes no time.
        times.append(times[-1] if stamp is None else max(times[-1], device.seconds(entries[0][2], stamp)))
    return times


def add_up(sums: list[dict[_Key, _Number]]) -> dict[_Key, _Number]:
    """Sum of several, key by key."""
    total: dict[_Key, _Number] = {}
    for added in sums:
        for key, value in added.items():
            total[key] = total.get(key, 0) + value
    return total


class Ledger:
    """Parts and stretches of one thread.

    Attributes:
        thread: identifier of its thread; 0, which no thread has, while nothing is recorded.
        depth: above 0 within a part that owns all that happens in it.
        part: the current one.
        mode: "validation", "saving" or "epoch start" while that is what the thread does, as far as known at once.
        device: takes stamps if the network runs on one.
        open: stretches that do not belong to a step or pass yet; the last one is running.
        num_moves: changes of part, for the recorder's own cost.
        on_move: called with the part that begins, while steps are profiled.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.thread = 0
        self.depth = 0
        self.part = ""
        self.mode = ""
        self.device: CudaDevice | None = None
        self.open: list[Stretch] = []
        self.num_moves = 0
        self.on_move: Callable[[str], None] | None = None

    @property
    def running(self) -> Stretch:
        return self.open[-1]

    def start(self, *, thread: int | None = None, label: str = "start") -> None:
        """Begins, or begins again with nothing open; for the calling thread if no other is given."""
        self.depth = 0
        self.part, self.mode = "other", ""
        self.open = [Stretch(label, -1, "", self.clock(), "other", self._stamp())]
        self.thread = get_ident() if thread is None else thread

    def stop(self) -> None:
        """From now on hooks do nothing. What is open stays readable."""
        self.thread = 0
        self.depth = 0
        self.part = self.mode = ""

    def move(self, part: str) -> None:
        """The thread enters another part."""
        self.part = part
        self.num_moves += 1
        self.open[-1].add((self.clock(), part, self._stamp()), self.device)
        if self.on_move is not None:
            self.on_move(part)

    def begin(self, part: str) -> None:
        """Enters a part that owns all that happens in it."""
        self.depth = 1
        self.move(part)

    def end(self, part: str = "other") -> None:
        """Leaves it."""
        self.depth = 0
        if self.thread:
            self.move(part)

    def cut(self, label: str, *, key: int = -1, where: str = "", part: str = "other") -> Stretch:
        """Ends the running stretch and begins the next one."""
        now_s, stamp = self.clock(), self._stamp()
        self.open[-1].end = (now_s, stamp)
        self.part = part
        self.num_moves += 1
        stretch = Stretch(label, key, where, now_s, part, stamp)
        self.open.append(stretch)
        return stretch

    def _stamp(self) -> Any:
        return None if self.device is None else self.device.stamp()


class Group(NamedTuple):
    """Stretches that belong together, in order; those of a step need not be neighbors."""

    kind: Kind
    stretches: list[Stretch]


def keys_of_training(stretches: Sequence[Stretch]) -> set[int]:
    """Loaders whose batches were learned from: fetched since the network last ran before it learned."""
    keys: set[int] = set()
    fetched: set[int] = set()
    for stretch in stretches:
        if stretch.has_batch:
            fetched.add(stretch.key)
        if stretch.num_backwards:
            keys |= fetched
        if stretch.num_forwards:
            fetched = set()
    return keys


def divide(stretches: Sequence[Stretch], training: set[int], *, has_stepped: bool) -> list[Group]:
    """Groups in the order in which they began; the step, if any, is the last one. A pure function.

    A stretch learns if a backward ran in it, or a network in training mode with gradients. It evaluates if a network
    ran and nothing learned: in evaluation mode, without gradients, or on batches of a loader that does not feed the
    training. A validation begins with what prepared the first evaluating stretch (`eval()`, another loader's `iter` or
    fetch, else the end of the last step) and ends with what prepares learning again (`train()`, the training loader's
    `iter` or fetch). A network that runs without learning on a batch that is then learned from, such as a teacher,
    belongs to the step.

    Args:
        stretches: since the last step's end.
        training: keys of loaders that are known to feed the training.
        has_stepped: whether the last stretch ended with an optimizer's step. If not, no group is a step, and what is
            not a validation, a saving or an epoch's start is left out.
    """
    if has_stepped and all(
        s.label in _PLAIN and not s.num_evaluating and (s.key < 0 or s.key in training) for s in stretches
    ):
        # Almost every step is like this; the shortcut saves 20 microseconds.
        return [Group("step", list(stretches))]
    keys = training | keys_of_training(stretches)
    kinds = _validations(stretches, keys, has_stepped)
    _mark_openings(stretches, keys, kinds)
    for index, stretch in enumerate(stretches):
        if stretch.label == "save":
            kinds[index] = "saving"
    groups: list[Group] = []
    step: list[Stretch] = []
    open_of: dict[str, list[Stretch]] = {}
    for stretch, kind in zip(stretches, kinds):
        if kind == "step":
            step.append(stretch)
            open_of.clear()
        elif kind == "saving" or kind not in open_of:
            groups.append(Group(kind, [stretch]))
            # A saving within a validation does not end it.
            if kind != "saving":
                open_of = {kind: groups[-1].stretches}
        else:
            open_of[kind].append(stretch)
    if has_stepped and step:
        groups.append(Group("step", step))
    return groups


def _validations(stretches: Sequence[Stretch], keys: set[int], has_stepped: bool) -> list[Kind]:
    kinds: list[Kind] = ["step"] * len(stretches)
    last = len(stretches) - 1
    # For each stretch, the loader that gave the last batch, -1 if none did; and whether it learns.
    feeding: list[int] = []
    learns: list[bool] = []
    for stretch in stretches:
        feeding.append(stretch.key if stretch.has_batch else feeding[-1] if feeding else -1)
        is_of_training = feeding[-1] < 0 or not keys or feeding[-1] in keys
        learns.append(bool(stretch.num_backwards or (stretch.num_learning and is_of_training)))
    if has_stepped:
        learns[last] = True
    begin = 0
    while begin <= last:
        stop = next((index for index in range(begin, last + 1) if learns[index]), last + 1)
        ran = [index for index in range(begin, stop) if stretches[index].num_forwards]
        is_of_step = ran and stop <= last and _is_of_step(stretches, range(begin, stop + 1), ran[-1], feeding, keys)
        if ran and not is_of_step:
            first = _first_of_validation(stretches, begin, ran[0], keys)
            for index in range(first, _end_of_validation(stretches, ran[-1], stop, keys)):
                kinds[index] = "validation"
        begin = stop + 1
    return kinds


def _is_of_step(stretches: Sequence[Stretch], around: range, last: int, feeding: Sequence[int], keys: set[int]) -> bool:
    """Whether what ran without learning until `last`, such as a teacher, is part of the step that ends `around`."""
    if any(stretches[index].has_batch for index in range(last + 1, around.stop)):
        return False
    if keys:
        # No new batch: learning uses the same one, unless it came from another loader.
        return feeding[last] in keys
    return not any(stretches[index].label in ("eval", "train") for index in around)


def _first_of_validation(stretches: Sequence[Stretch], begin: int, ran: int, keys: set[int]) -> int:
    for index in range(begin, ran + 1):
        stretch = stretches[index]
        if stretch.label == "eval" or (stretch.label in ("iter", *_FETCHES) and stretch.key not in keys):
            return index
    return ran if stretches[begin].label == "start" else begin


def _end_of_validation(stretches: Sequence[Stretch], ran: int, stop: int, keys: set[int]) -> int:
    for index in range(ran + 1, stop):
        stretch = stretches[index]
        if stretch.label == "train" or (stretch.label in ("iter", *_FETCHES) and stretch.key in keys):
            return index
    return stop


def _mark_openings(stretches: Sequence[Stretch], keys: set[int], kinds: list[Kind]) -> None:
    """An epoch's start: from a training loader's `iter` to its first batch, over several loaders in one loop."""
    for index, first in enumerate(stretches):
        # A stretch within an opening that was marked before is no longer of a step.
        if kinds[index] != "step" or first.label not in ("iter", "first") or first.key not in keys:
            continue
        stop = index + 1
        for following in range(index + 1, len(stretches)):
            stretch = stretches[following]
            if stretch.label not in _OPENINGS or kinds[following] != "step":
                break
            if stretch.label in ("iter", "first"):
                stop = following + 1
            if stretch.num_forwards or stretch.num_backwards:
                break
        for inside in range(index, stop):
            kinds[inside] = "epoch start"
