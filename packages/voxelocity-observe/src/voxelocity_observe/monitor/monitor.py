"""Watches the machine while a program runs: samples to memory and to a folder, and phases if the program marks them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from voxelocity_observe.core.credentials import without_credentials
from voxelocity_observe.core.environment import environment
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.monitor.files import PICTURE, MonitorFiles, read_phases
from voxelocity_observe.monitor.record import MonitorRecord
from voxelocity_observe.monitor.samples import Sample
from voxelocity_observe.monitor.sampling import Sampler, checked_period_s
from voxelocity_observe.spans.phases import FOLDER_VARIABLE, PhaseFile
from voxelocity_observe.spans.scope import LISTENERS


class Monitor:
    """Samples host and GPUs in a thread, from `start` to `stop`; usable as a context manager.

    By default the watched program is this process with its children::

        with voxelocity.Monitor("watched"):
            train()

    A sample costs about 1 ms of CPU; docs/monitor.md has the figures.

    Args:
        folder: gets `samples.csv` while it runs and `monitor.json`; without one all data stays in memory.
        period_s: seconds between two samples, 0.1 to 60.
        command: what is watched, for the record; empty for this process.
        on_sample: is called with each sample, in the sampling thread; an exception ends the sampling.
        tell: is called once with each thing that goes wrong; prints to stderr by default.

    Attributes:
        other_cpu_s: CPU seconds other than sampling that count as the monitor's own.

    Raises:
        ConfigError: `period_s` is out of range.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        period_s: float = 0.5,
        *,
        command: Sequence[str] = (),
        on_sample: Callable[[Sample], None] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.folder = None if folder is None else Path(folder).absolute()
        self.period_s = checked_period_s(period_s)
        self.other_cpu_s = 0.0
        self._command = tuple(without_credentials(command))
        self._on_sample = on_sample
        self._tell = tell or (lambda text: print(f"voxelocity: {text}", file=sys.stderr))
        self._notes: list[str] = []
        self._files: MonitorFiles | None = None
        self._sampler: Sampler | None = None
        self._environment: dict[str, Any] = {}
        self._variable_before: str | None = None
        self._phases: PhaseFile | None = None
        self._is_running = False
        self._is_over = False
        self._status: int | None = None
        self._seconds = 0.0

    def prepare(self) -> Self:
        """Makes the folder. `start` does so too; call this to know beforehand that the folder can be written.

        Raises:
            OutputError: the folder holds a record already, or cannot be written.
        """
        if self.folder is not None and self._files is None:
            self._files = MonitorFiles(self.folder, self.note)
        self._environment = environment()
        return self

    def start(self, pid: int | None = None) -> Self:
        """Begins to sample.

        Args:
            pid: of the watched program; this process if not given, and then its phases are recorded too.

        Raises:
            InputError: it was started before; make a new one.
            OutputError: the folder holds a record already, or cannot be written.
        """
        if self._is_running or self._is_over:
            raise InputError("monitoring: this Monitor was started before; make a new one for another recording")
        self.prepare()
        self._is_running = True
        if pid is None and self.folder is not None:
            # The variable is for children: who listens in this process was decided at its first span. It is set last,
            # because it would make the first look find this listener again.
            self._phases = PhaseFile(self.folder)
            LISTENERS.add(self._phases)
            self._variable_before = os.environ.get(FOLDER_VARIABLE)
            os.environ[FOLDER_VARIABLE] = str(self.folder)
        watched = os.getpid() if pid is None else pid
        self._sampler = Sampler(watched, period_s=self.period_s, on_sample=self._keep)
        self._sampler.start()
        self._describe(self._sampler)
        return self

    def take(self) -> Sample | None:
        """One more sample, now, besides the regular ones; None if the last one is too recent."""
        return None if self._sampler is None else self._sampler.take()

    def stop(self, status: int | None = None) -> MonitorRecord:
        """Ends sampling and returns the record. A second call only returns it again.

        Args:
            status: exit status of the program, negative for a signal.
        """
        if self._is_running and self._sampler is not None:
            self._sampler.take()
            self._seconds = self._sampler.elapsed_s
            self._sampler.stop()
            self._status = status
            self._is_running, self._is_over = False, True
            if os.environ.get(FOLDER_VARIABLE) == str(self.folder):
                del os.environ[FOLDER_VARIABLE]
                if self._variable_before is not None:
                    os.environ[FOLDER_VARIABLE] = self._variable_before
            if self._phases is not None:
                LISTENERS.remove(self._phases)
                self._phases.close()
            self._describe(self._sampler)
            if self._files is not None:
                self._files.close()
        return self.record

    def discard(self) -> None:
        """Ends. If nothing was watched, leaves no record and nothing in the folder."""
        if self._is_running:
            self.stop()
        elif self._files is not None and not self._is_over:
            self._files.remove()

    @property
    def record(self) -> MonitorRecord:
        """What has been seen so far."""
        sampler = self._sampler
        if sampler is None:
            return MonitorRecord(command=self._command, seconds=0.0, period_s=self.period_s)
        if self._phases is not None:
            self._phases.flush()
        phases, left_out = ([], "") if self.folder is None else read_phases(self.folder, sampler.begin_s)
        notes = [*sampler.missing, *self._notes, left_out]
        return MonitorRecord(
            command=self._command,
            status=self._status,
            seconds=sampler.elapsed_s if self._is_running else self._seconds,
            period_s=self.period_s,
            own_cpu_s=sampler.own_cpu_s + self.other_cpu_s,
            samples=sampler.samples,
            phases=phases,
            missing=[note for note in notes if note],
            environment=self._environment,
        )

    @property
    def last(self) -> Sample | None:
        """The newest sample."""
        return None if self._sampler is None else self._sampler.last

    def plot(self, path: str | Path | None = None) -> Path:
        """The path of a picture (PNG) of what has been seen so far.

        Args:
            path: of the picture; by default `monitor.png` in the folder, or in the current folder if there is none.

        Raises:
            InputError: nothing has been watched yet.
            OutputError: it cannot be written.
        """
        if not self._is_running and not self._is_over:
            raise InputError("monitoring: nothing has been watched yet; call start() before plot()")
        from voxelocity_observe.monitor.page import render_monitor_png

        place = Path(path) if path is not None else (self.folder or Path()) / PICTURE
        return render_monitor_png(self.record, place)

    @property
    def notes(self) -> Sequence[str]:
        """What was reported so far."""
        return tuple(self._notes)

    def note(self, text: str) -> None:
        """Reports a text once and keeps it with what is missing."""
        if text not in self._notes:
            self._notes.append(text)
            self._tell(text)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _keep(self, sample: Sample) -> None:
        if self._files is not None and self._sampler is not None:
            self._files.add(sample, self._sampler.gpus)
        if self._on_sample is not None:
            self._on_sample(sample)

    def _describe(self, sampler: Sampler) -> None:
        if self._files is not None:
            self._files.describe(self.record, begin_s=sampler.begin_s, gpus=sampler.gpus, is_over=self._is_over)
