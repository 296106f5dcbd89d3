"""How far predictions are, as their user sees it."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from voxelocity.infer.job import PredictionJob
from voxelocity_observe.core.progress_bar import WorkProgress


class PredictionProgress(WorkProgress):
    """Which scan is predicted, and the time left, by forward passes."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "reading the model")
        self._job: PredictionJob | None = None
        self._done: set[str] = set()
        self._num_passes = self._num_done = self._num_all = 0

    def begin(self, job: PredictionJob) -> None:
        """The scans are known."""
        self._job, self._num_all = job, sum(memory.num_passes for memory in job.memory.values())
        self._show()

    def watch(self, on_windows: Callable[[], None] | None) -> Callable[[], None]:
        """What to call before each forward pass, in place of `on_windows`, which it calls."""

        def advance() -> None:
            self._num_passes += 1
            self._show()
            if on_windows is not None:
                on_windows()

        return advance

    def end(self, case_id: str) -> None:
        """A scan is predicted, or cannot be."""
        self._done.add(case_id)
        if self._job is not None and case_id in self._job.memory:
            self._num_done += self._job.memory[case_id].num_passes
        self._num_passes = max(self._num_passes, self._num_done)
        self._show()

    def _show(self) -> None:
        if self._job is None:
            return
        num_scans, share = len(self._job.refs), min(1.0, self._num_passes / max(1, self._num_all))
        number = min(len(self._done) + 1, num_scans)
        self.update(share, f"predicting scan {number} of {num_scans}{self.left_text(share)}")
