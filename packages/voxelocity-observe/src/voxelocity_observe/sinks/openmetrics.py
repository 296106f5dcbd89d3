"""A file with the latest figures of a run, for Prometheus' collectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxelocity_observe.monitor.exposition import (
    Gauge,
    Labeled,
    exposition,
    named_gauge,
    sample_values,
    write_exposition,
)
from voxelocity_observe.monitor.samples import sample_of
from voxelocity_observe.sinks.protocol import Event, RunStart

_STEP = named_gauge("train_step", "", "Optimizer steps done.")
_EPOCH = named_gauge("train_epoch", "", "Completed passes over the training cases.")
_LOSS = named_gauge("train_loss", "", "Mean loss over about the last second.")
_RATE = named_gauge("train_learning_rate", "", "Learning rate.")
_SPEED = named_gauge("train", "images_per_second", "Patches trained on per second.")
_WAIT = named_gauge("train_wait", "ratio", "Share of the training time spent waiting for data.")
_MEAN_DICE = named_gauge("validation_mean_dice", "ratio", "Mean foreground Dice of the last validation.")
_DICE = named_gauge("validation_dice", "ratio", "Dice of each class in the last validation.")
_BEST_DICE = named_gauge("validation_best_mean_dice", "ratio", "Best mean foreground Dice so far.")
_VALIDATION = named_gauge("validation_duration", "seconds", "How long the last validation took.")
_ELAPSED = named_gauge("run_elapsed", "seconds", "Time of the run up to the last event, all sessions.")
_WARNINGS = named_gauge("run_warnings", "", "Warnings of the run so far.")
_RUNNING = named_gauge("run_running", "", "1 while the run is active, 0 once it has ended.")


class OpenMetricsSink:
    """Keeps a file with the run's latest figures, replaced in one move whenever they change. Sends nothing.

    Args:
        path: of the file, ending in `.prom` for node_exporter; `metrics.prom` below the run's `tracking` if not given.
    """

    name = "openmetrics"

    def __init__(self, path: Path | str | None = None) -> None:
        # A shell leaves the ~ of "openmetrics:~/run.prom".
        self._path = None if path is None else Path(path).expanduser()

    def begin(self, run: RunStart) -> None:
        self._target = self._path or run.folder / "metrics.prom"
        if self._path is None:
            run.folder.mkdir(parents=True, exist_ok=True)
        self._labels = {"run": run.name}
        self._values: dict[Gauge, list[Labeled]] = {}
        self._machine: list[tuple[Gauge, list[Labeled]]] = []
        self._num_warnings = 0
        for event in run.kept:
            self._take(event)
        self._set(_RUNNING, 1)
        self._write()

    def write(self, event: Event) -> None:
        self._take(event)
        self._write()

    def end(self) -> None:
        """Leaves the last figures, and marks the run as ended."""
        self._set(_RUNNING, 0)
        self._write()

    def _take(self, event: Event) -> None:
        self._set(_ELAPSED, event["time_s"])
        match event["event"]:
            case "steps":
                self._take_steps(event)
            case "validation":
                self._set(_MEAN_DICE, event["mean_dice"])
                self._set(_VALIDATION, event["seconds"])
                if event["is_best"]:
                    self._set(_BEST_DICE, event["mean_dice"])
                dice = event["dice"].items()
                self._values[_DICE] = [({**self._labels, "class": name}, value) for name, value in dice]
            case "warning":
                self._num_warnings += 1
            case "sample":
                # All figures of the machine are replaced at once: a GPU that was lost must not stay there for good.
                self._machine = sample_values(sample_of(event), self._labels)
        self._set(_WARNINGS, self._num_warnings)

    def _take_steps(self, event: Event) -> None:
        for gauge, key in ((_STEP, "step"), (_EPOCH, "epoch"), (_LOSS, "loss"), (_RATE, "learning_rate")):
            self._set(gauge, event[key])
        if event["seconds"] > 0.0:
            self._set(_SPEED, event["num_images"] / event["seconds"])
            self._set(_WAIT, event["wait_s"] / event["seconds"])

    def _set(self, gauge: Gauge, value: Any) -> None:
        self._values[gauge] = [(self._labels, value)]

    def _write(self) -> None:
        write_exposition(self._target, exposition([*self._values.items(), *self._machine]))
