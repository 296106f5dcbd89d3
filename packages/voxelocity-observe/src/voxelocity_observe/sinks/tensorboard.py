"""TensorBoard: event files below the run's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from voxelocity_observe.core.quantities import dotted
from voxelocity_observe.sinks.protocol import Event, RunStart, need_package
from voxelocity_observe.sinks.scalars import ScalarStream


class TensorBoardSink:
    """Writes scalars, the plan as hyper-parameters, and plan and environment as text, by `torch.utils.tensorboard`.

    What a killed session wrote after its last checkpoint is dropped when the run resumes, in TensorBoard's own way: by
    the step at which the new file begins. Sends nothing.

    Args:
        folder: holds a folder with the run's name for its event files; `tensorboard` below the run's `tracking` if not
            given.

    Raises:
        ConfigError: the package tensorboard is not installed.
    """

    name = "tensorboard"

    def __init__(self, folder: Path | str | None = None) -> None:
        need_package("tensorboard", sink=self.name)
        # A shell leaves the ~ of "tensorboard:~/logs".
        self._folder = None if folder is None else Path(folder).expanduser()

    def begin(self, run: RunStart) -> None:
        """Opens a new file; starting at a resumed run's first step, it replaces those before it."""
        from torch.utils.tensorboard import SummaryWriter

        folder = run.folder / self.name if self._folder is None else self._folder / run.name
        has_files = any(folder.glob("events.out.tfevents.*"))
        goes_on = has_files and run.is_resumed
        # Everything that an earlier run of this name left there is dropped.
        purge_step = run.first_step + 1 if goes_on else 0 if has_files else None
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge_step)
        self._stream = ScalarStream()
        if not goes_on:
            self._describe(run)
            for event in run.kept:
                self.write(event)

    def write(self, event: Event) -> None:
        if event["event"] == "warning":
            self._writer.add_text("warnings", str(event["text"]))
        scalars = self._stream.of(event)
        if scalars is None:
            return
        for name, value in scalars.values.items():
            self._writer.add_scalar(name, value, scalars.step)
        self._writer.flush()

    def end(self) -> None:
        self._writer.close()

    def _describe(self, run: RunStart) -> None:
        from torch.utils.tensorboard import summary

        hparams: Any = summary.hparams
        settings = {key: _hyper_parameter(value) for key, value in dotted(run.config).items()}
        # One record for the experiment, one for the session, one for its end; without a metric there is no table.
        for record in hparams(settings, {"validation/mean_dice": 0.0, "final/mean_dice": 0.0}):
            self._writer.file_writer.add_summary(record)
        for title, values in (("plan", run.config), ("environment", run.environment)):
            text = json.dumps(values, indent=2, default=str)
            self._writer.add_text(title, "\n".join(f"    {line}" for line in text.splitlines()))


def _hyper_parameter(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)
