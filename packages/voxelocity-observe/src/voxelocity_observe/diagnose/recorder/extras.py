"""What is seen besides the steps of one process: stacks, waits for the device, transforms, files."""

from __future__ import annotations

import time
from typing import Any

from . import steps
from .files import Files
from .lines import OWN_CODE
from .stacks import Stacks
from .syncs import Syncs
from .transforms import TransformTimer
from .writer import Writer, note_failure

LIBRARIES = (
    "monai.transforms",
    "torchio",
    "torchvision.transforms.transforms",
    "batchgenerators.transforms.abstract_transforms",
    "batchgeneratorsv2.transforms.base.basic_transform",
    "SimpleITK",
    "h5py",
)
"""Modules whose transforms and readers are hooked when the program imports them."""

_REPORT_EVERY_S = 2.0


class Extras:
    """Starts and stops all of them, and writes what they have seen every two seconds and at the end.

    One that fails is named in the recording and left out; the others continue.

    Args:
        writer: of this process. What is seen is written before the writer flushes to its file.
        is_worker: whether the process only makes batches: it has no device to wait for.
    """

    def __init__(self, writer: Writer, *, is_worker: bool = False) -> None:
        # In a worker the thread that starts this makes the batches.
        thread = None if is_worker else steps.training_thread()
        self.syncs = None if is_worker else Syncs(steps, OWN_CODE, thread=thread)
        self.stacks = Stacks(steps, OWN_CODE, thread=thread)
        self._writer = writer
        self._all: list[Any] = [
            *([self.syncs] if self.syncs is not None else []),
            TransformTimer(steps),
            Files(steps, ignore=(writer.folder,)),
            self.stacks,
        ]
        self._is_worker = is_worker
        self._is_running = False
        self._reported_s = 0.0

    def start(self) -> None:
        """Begins to watch."""
        self._is_running = True
        for extra in list(self._all):
            self._call(extra, "start")
        self._writer.before_flush(self._report_now_and_then)

    def take_in(self, module: Any) -> None:
        """Looks for transforms and readers again, because the program has imported this library of them."""
        for extra in list(self._all):
            if self._is_running and isinstance(extra, (TransformTimer, Files)):
                self._call(extra, "start")

    def follow(self, thread: int) -> None:
        """From now on this thread counts as the one that trains."""
        self.stacks.thread = thread
        if self.syncs is not None:
            self.syncs.thread = thread

    def stop(self) -> None:
        """Removes all hooks, and writes what was seen. A second call does nothing."""
        if self._is_running:
            self.drop()
            self._report()
            if self.stacks.failure:
                self._writer.write("unseen", text=self.stacks.failure)

    def drop(self, *, is_forked: bool = False) -> None:
        """Removes all hooks. Another process reports what was seen.

        Args:
            is_forked: whether this process was forked since the start, without its parent's other threads.
        """
        self._is_running = False
        if is_forked:
            self.stacks.forget()
        for extra in reversed(self._all):
            self._call(extra, "stop")

    def _report_now_and_then(self) -> None:
        now_s = time.monotonic()
        if self._is_running and now_s - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now_s
            self._report()

    def _report(self) -> None:
        # A program that only predicts has no steps; only its stacks are reported.
        counts = self._is_worker or steps.counted_steps()
        for extra in self._all if counts else [other for other in self._all if other is self.stacks]:
            extra.report(self._writer)

    def _call(self, extra: Any, what: str) -> None:
        try:
            getattr(extra, what)()
        except Exception:
            note_failure(self._writer.folder, f"{type(extra).__name__} failed in {what}")
            if what == "start":
                self._all.remove(extra)
