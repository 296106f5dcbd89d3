"""What all parts of a run use: its plan and folder, the log of its stages and warnings, and the request to stop it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Self

from rich.console import Console

from voxelocity.parallel import ALONE, World
from voxelocity.planning import Planned, model_spec
from voxelocity.report import read_run, render_page
from voxelocity.training.run_folder import RunFolder
from voxelocity.training.source_model import SourceModel
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.credentials import hide_credentials
from voxelocity_observe.core.errors import InterruptedRunError, OutputError
from voxelocity_observe.core.events import EventLog
from voxelocity_observe.spans import phase

# On a monitor's timeline.
_COLORS = {
    "cache": "brown",
    "train": "lightblue",
    "network": "grey",
    "rehearse validation": "khaki",
    "validate": "gold",
    "report": "plum",
}
_ECHO_S = 2.0
_PHASE_NAMES = {"validate": "final validation"}


class StopAskedError(Exception):
    """Raised between two batches of windows once a stop was asked for; the code that began the work handles it."""


class StopRequest:
    """While entered, the first Ctrl-C or SIGTERM only sets `signal_number`; a second Ctrl-C stops at once.

    The run follows it between two steps, after saving its state. Signals reach only Python's main thread; entered in
    another thread, this does nothing.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._noted_s = 0.0
        self._previous: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self.signal_number is not None

    def check(self) -> None:
        """Ends work that has no state to save.

        Raises:
            StopAskedError: a stop was asked for.
        """
        if self:
            raise StopAskedError

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None and number == signal.SIGINT and not self._is_echo():
            raise KeyboardInterrupt
        self.signal_number = number
        self._noted_s = system_clock()

    def _is_echo(self) -> bool:
        """Whether torchrun may only have passed on a Ctrl-C that the terminal has sent to its ranks already."""
        return "TORCHELASTIC_RUN_ID" in os.environ and system_clock() - self._noted_s < _ECHO_S


@dataclass(kw_only=True)
class Session:
    """A run from its start, or from where it is resumed, to its end or the next interruption."""

    planned: Planned
    folder: RunFolder
    log: EventLog
    console: Console
    clock: Clock
    stop: StopRequest
    source: SourceModel | None = None
    world: World = ALONE

    def __post_init__(self) -> None:
        self.plan = self.planned.plan
        self.spec = model_spec(self.planned)
        # Cases from which the model that the run starts from may have learned, and why.
        self.exposed: Mapping[str, str] = self.planned.exposed
        self.device = self.planned.machine.torch_device
        self.num_threads = self.planned.machine.num_cpus

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Logs how long the block took, even if it ends in an error; a monitor's timeline shows it as a phase."""
        start_s = self.clock()
        try:
            with phase(_PHASE_NAMES.get(name, name), color=_COLORS.get(name, "")):
                yield
        finally:
            self.log.write("stage", name=name, seconds=self.clock() - start_s)

    def warn(self, text: str) -> None:
        """Logs a warning and shows it."""
        text = hide_credentials(text)
        self.log.write("warning", text=text)
        # Those of other ranks are mostly the leader's again.
        self.console.print(f"warning: {text}", style="yellow", highlight=False, soft_wrap=True)

    def log_interruption(self, step: int) -> InterruptedRunError:
        """Logs that the run was stopped with its state of `step` saved, and makes the page of what there is.

        Returns:
            The error that says so.
        """
        number = self.stop.signal_number
        names: dict[int | None, str] = {
            None: "a signal to another rank",
            signal.SIGINT: "Ctrl-C",
            signal.SIGTERM: "SIGTERM",
        }
        begin, number = f"train: stopped by {names[number]}", number or int(signal.SIGTERM)
        self.log.write("interrupted", signal=number)
        if step == 0:
            text = (
                f"{begin} before the first training step, so there was no state to save; the same command with "
                f"--resume trains the run in {self.folder.path}"
            )
        else:
            text = (
                f"{begin} at step {step}; the state is saved in {self.folder.path}; "
                f"the same command with --resume continues from there, {self._page_text()}"
            )
        return InterruptedRunError(text, signal_number=number)

    def _page_text(self) -> str:
        """Where the page of the unfinished run is, once the leader has made it; a finished run keeps its own."""
        page = self.folder.report
        if self.world.is_leader and not self.folder.is_finished():
            try:
                render_page(read_run(self.folder.path), page)
            except OutputError as error:
                return f"but its page could not be written ({error})"
        return f"and {page} shows what there is"
