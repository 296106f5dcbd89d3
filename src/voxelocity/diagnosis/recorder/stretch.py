"""A stretch: the time of the training thread between two moments at which a step or a validation may begin or end.

Which of them it belongs to is often known only later; `division` decides.
"""

from __future__ import annotations

from typing import Any

from .device import Device

_FOLD_AT = 512

Entry = tuple[float, str, Any]
"""Start (host seconds), part, and stamp of the device."""


class Stretch:
    """What the thread did in a stretch.

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

    __slots__ = (
        "_host",
        "_stream",
        "end",
        "entries",
        "has_batch",
        "has_gradients",
        "key",
        "label",
        "num_backwards",
        "num_evaluating",
        "num_forwards",
        "num_images",
        "num_synced",
        "shapes",
        "start_s",
        "where",
        "windows",
    )

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

    def add(self, entry: Entry, device: Device | None) -> None:
        """The thread enters another part."""
        self.entries.append(entry)
        if len(self.entries) >= _FOLD_AT:
            self._fold(device)

    def host_parts(self, now_s: float = 0.0) -> dict[str, float]:
        """Seconds by part as the host spent them, until the end or `now_s`."""
        return _host_sums(self.entries, self.end[0] if self.end else now_s, self._host)

    def is_settled(self, device: Device | None) -> bool:
        """Whether the device has passed the end."""
        if device is None or self.end is None:
            return self.end is not None
        return self.end[1] is None or device.is_done(self.end[1])

    def parts(self, device: Device | None) -> dict[str, float]:
        """Seconds by part on the device's timeline, or the host's without a device. Call this once it is settled."""
        assert self.end is not None
        if device is None or self.entries[0][2] is None:
            return self.host_parts()
        return _stream_sums(self.entries, self.end[1], device, self._stream)

    def release(self, device: Device | None) -> None:
        """Releases the stamps; the one at the end belongs to the next stretch."""
        if device is not None:
            device.release([entry[2] for entry in self.entries])
        self.entries = self.entries[:1]

    def _fold(self, device: Device | None) -> None:
        """Sums what is over, so a validation of many thousand windows takes no memory."""
        last = self.entries[-1]
        if device is not None and self.entries[0][2] is not None:
            if last[2] is None or not device.is_done(last[2]):
                return
            self._stream = _stream_sums(self.entries[:-1], last[2], device, self._stream)
            device.release([entry[2] for entry in self.entries[:-1]])
        self._host = _host_sums(self.entries[:-1], last[0], self._host)
        self.entries = [last]


def _host_sums(entries: list[Entry], end_s: float, before: dict[str, float]) -> dict[str, float]:
    sums = dict(before)
    since_s, part = entries[0][0], entries[0][1]
    for now_s, following, _ in entries[1:]:
        sums[part] = sums.get(part, 0.0) + now_s - since_s
        since_s, part = now_s, following
    sums[part] = sums.get(part, 0.0) + max(0.0, end_s - since_s)
    return sums


def _stream_sums(entries: list[Entry], end: Any, device: Device, before: dict[str, float]) -> dict[str, float]:
    sums = dict(before)
    origin, part, since_s = entries[0][2], entries[0][1], 0.0
    following = [(part, stamp) for _, part, stamp in entries[1:]]
    for next_part, stamp in [*following, ("", end)]:
        # A stamp that could not be taken, or one on another stream that ran ahead, takes no time.
        now_s = since_s if stamp is None else max(since_s, device.seconds(origin, stamp))
        sums[part] = sums.get(part, 0.0) + now_s - since_s
        since_s, part = now_s, next_part
    return sums


def add_up(sums: list[dict[str, float]]) -> dict[str, float]:
    """Sum of several, part by part."""
    total: dict[str, float] = {}
    for one in sums:
        for part, seconds in one.items():
            total[part] = total.get(part, 0.0) + seconds
    return total
