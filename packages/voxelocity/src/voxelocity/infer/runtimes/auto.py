"""Which runtime is quickest for a network on this machine, by measurement, with its logits checked against eager.

Speed and differences are measured on windows of noise, and remembered. What building takes counts: a runtime is built
only if that can pay for the windows to be predicted.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from voxelocity.infer.runtimes.contract import EAGER, Forward, NamedForward, Runtime, RuntimeTask, in_one_line
from voxelocity.infer.runtimes.table import RUNTIMES
from voxelocity_observe.core.clock import Clock, system_clock
from voxelocity_observe.core.device import is_out_of_memory
from voxelocity_observe.core.host import cpu_budget, cpu_name
from voxelocity_observe.core.interleaved_timing import time_interleaved
from voxelocity_observe.core.measured import keep_measured, read_measured
from voxelocity_observe.core.quantities import duration_text

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.05}
"""By compute format: the largest difference of a logit from eager's, as a share of eager's largest logit. Eager itself
differs from float32 by about a third of it (tests/infer/runtimes/test_auto.py)."""
_TF32_TOLERANCE = 2e-2
# Building a runtime, and timing those that come near the quickest, may each take this share of the time that eager
# would take for everything.
_MOST_BUILD_SHARE = 0.2
_MOST_TIMING_SHARE = 0.1
_LEAST_TIMING_S = 0.5
# A batch that takes this much longer than another is not the quicker one by chance.
_NEAR = 1.3
_FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What was measured of a runtime.

    Attributes:
        build_s: seconds until it was ready.
        window_s: seconds of a window in a full batch; None if it cannot be used.
        difference: largest difference of a logit from eager's, as a share of eager's largest logit.
        why_not: why it cannot be used; "" if it can.
    """

    build_s: float
    window_s: float | None = None
    difference: float = 0.0
    why_not: str = ""


def load_quickest(
    network: torch.nn.Module,
    task: RuntimeTask,
    *,
    num_windows: int,
    folder: Path,
    note: Callable[[str], None],
    runtimes: Mapping[str, Runtime] = RUNTIMES,
    clock: Clock = system_clock,
) -> NamedForward:
    """The network in the runtime that takes the least time for this many windows, building included.

    Args:
        network: in evaluation mode, on the device of the task.
        task: what it has to compute.
        num_windows: to be predicted.
        folder: where measurements are kept.
        note: called with what was chosen and why, and with each runtime that cannot be built or answers wrongly.
        runtimes: to choose from, eager first.
        clock: returns seconds.
    """
    about = {"format_version": _FORMAT_VERSION, **_about(network, task)}
    contest = _Contest(network, task, runtimes, note, clock)
    trials = _read(read_measured(folder, about))
    eager_s = trials[EAGER].window_s if EAGER in trials else None
    try:
        eager_s = contest.eager_window_s() if eager_s is None else eager_s
        wanted = contest.worth_trying(num_windows * eager_s)
        is_remembered = set(wanted) <= set(trials)
        if not is_remembered:
            trials = contest.run(wanted, eager_s, num_windows=num_windows)
            keep_measured(folder, about, {"trials": {name: asdict(trial) for name, trial in trials.items()}})
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # The window engine takes smaller batches then, for which no runtime would be built.
        note("predict: runtime eager, untested: a full batch of windows does not fit into memory")
        return NamedForward(EAGER, contest.load(EAGER))
    if EAGER not in trials:
        note(
            f"predict: runtime eager, untested: {num_windows} windows take it about "
            f"{duration_text(num_windows * eager_s)}, and building another takes longer than that could save"
        )
        return NamedForward(EAGER, contest.load(EAGER))
    return contest.load_best(trials, num_windows=num_windows, is_remembered=is_remembered)


class _Contest:
    """Runtimes of one network that are built and compared."""

    def __init__(
        self,
        network: torch.nn.Module,
        task: RuntimeTask,
        runtimes: Mapping[str, Runtime],
        note: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._network, self._task, self._runtimes, self._note, self._clock = network, task, runtimes, note, clock
        self._built: dict[str, Forward] = {}
        noise = torch.Generator().manual_seed(0)
        self._windows = torch.randn(task.batch_shape, generator=noise).to(task.device)

    def load(self, name: str) -> Forward:
        if name not in self._built:
            self._built[name] = self._runtimes[name].load(self._network, self._task)
        return self._built[name]

    def eager_window_s(self) -> float:
        """Seconds of a window in eager mode, from one batch after another that does not count."""
        self._call(EAGER)
        return self._window_s(EAGER)

    def worth_trying(self, eager_s: float) -> list[str]:
        """Runtimes that are installed and typically built within a share of the time that eager takes for all."""
        return [
            name
            for name, runtime in self._runtimes.items()
            if name != EAGER
            and runtime.build_s <= _MOST_BUILD_SHARE * eager_s
            and not runtime.why_not(self._task.device)
        ]

    def run(self, names: list[str], eager_s: float, *, num_windows: int) -> dict[str, Trial]:
        """Builds the runtimes of these names, and times them and eager: once, and those near the quickest again."""
        wanted = self._call(EAGER).float().clone()
        trials = {EAGER: Trial(build_s=0.0, window_s=eager_s), **{name: self._try(name, wanted) for name in names}}
        seconds = {name: trial.window_s for name, trial in trials.items() if trial.window_s is not None}
        near = [name for name in seconds if seconds[name] <= _NEAR * min(seconds.values())]
        if len(near) < 2:
            return trials
        limit_s = max(_LEAST_TIMING_S, _MOST_TIMING_SHARE * eager_s * num_windows)
        times = time_interleaved({name: partial(self._call, name) for name in near}, limit_s=limit_s, clock=self._clock)
        for name in times.seconds:
            trials[name] = replace(trials[name], window_s=times.median_s(name) / self._task.batch_size)
        return trials

    def load_best(self, trials: Mapping[str, Trial], *, num_windows: int, is_remembered: bool) -> NamedForward:
        """The runtime of the least total time; the next one if it cannot be built any more."""
        totals_s = {
            name: trial.window_s * num_windows + (0.0 if name in self._built else trial.build_s)
            for name, trial in trials.items()
            if trial.window_s is not None and name in self._runtimes
        }
        for name in sorted(totals_s, key=lambda runtime: totals_s[runtime]):
            try:
                forward = self.load(name)
            # As in `load_named`.
            except Exception as error:
                self._note(f"predict: runtime {name} could not be built ({in_one_line(error)}); the next one is used")
                continue
            self._built = {name: forward}
            if self._task.device.type == "cuda":
                torch.cuda.empty_cache()
            self._note(_in_words(name, trials, num_windows=num_windows, is_remembered=is_remembered))
            return NamedForward(name, forward)
        return NamedForward(EAGER, self.load(EAGER))

    def _try(self, name: str, wanted: torch.Tensor) -> Trial:
        begin_s = self._clock()
        try:
            self.load(name)
            logits = self._call(name).float()
        # As in `load_named`.
        except Exception as error:
            self._built.pop(name, None)
            self._note(f"predict: runtime {name} is left out, it could not be built ({in_one_line(error)})")
            return Trial(build_s=self._clock() - begin_s, why_not=f"could not be built: {in_one_line(error)}")
        build_s = self._clock() - begin_s
        found, most = relative_difference(logits, wanted), tolerance(self._task)
        # Not `found > most`: a NaN must not pass.
        if not found <= most:
            del self._built[name]
            text = f"its logits differ from eager's by {found:.2g} of the largest, more than {most:.2g}"
            self._note(f"predict: runtime {name} is refused: {text}")
            return Trial(build_s=build_s, difference=found if math.isfinite(found) else -1.0, why_not=text)
        return Trial(build_s=build_s, window_s=self._window_s(name), difference=found)

    def _window_s(self, name: str) -> float:
        """Seconds of a window, from the quickest of two batches, or of three short ones.

        OpenVINO's second call took 2.5 times as long as later ones (docs/log), and other programs hold calls up.
        """
        start_s, seconds = self._clock(), list[float]()
        while len(seconds) < 2 or (len(seconds) < 3 and self._clock() - start_s < _LEAST_TIMING_S):
            begin_s = self._clock()
            self._call(name)
            seconds.append(self._clock() - begin_s)
        return min(seconds) / self._task.batch_size

    def _call(self, name: str) -> torch.Tensor:
        with torch.no_grad():
            logits = self.load(name)(self._windows)
        if self._task.device.type == "cuda":
            torch.cuda.synchronize(self._task.device)
        return logits


def tolerance(task: RuntimeTask) -> float:
    """The largest `relative_difference` of a runtime that is not refused."""
    if task.precision.compute == "float32" and task.device.type == "cuda":
        # Convolutions round their factors to TF32, each library on its own.
        return _TF32_TOLERANCE
    return TOLERANCES[task.precision.compute]


def relative_difference(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference as a share of the largest wanted value; infinite if the shapes differ, NaN if a logit is."""
    if logits.shape != wanted.shape:
        return math.inf
    largest = float(wanted.abs().max())
    return float((logits - wanted).abs().max()) / max(largest, 1e-6)


def _in_words(name: str, trials: Mapping[str, Trial], *, num_windows: int, is_remembered: bool) -> str:
    times = {runtime: duration_text(trial.window_s) for runtime, trial in trials.items() if trial.window_s is not None}
    others = ", ".join(f"{runtime} {text}" for runtime, text in times.items() if runtime != name)
    source = "measured earlier on this machine" if is_remembered else "measured now and stored"
    building = f", {duration_text(trials[name].build_s)} to build" if name != EAGER else ""
    differs = f"; its logits differ from eager's by {trials[name].difference:.1g} at most" if name != EAGER else ""
    return (
        f"predict: runtime {name} for {num_windows} windows: {times[name]} per window{building}"
        f"{f' ({others})' if others else ''}{differs}; {source}"
    )


def _read(record: Mapping[str, Any] | None) -> dict[str, Trial]:
    """The trials of a file; none if it is damaged."""
    try:
        trials = {str(name): Trial(**values) for name, values in (record or {}).get("trials", {}).items()}
        # A sum of all numbers fails if one of them is something else.
        sum(trial.build_s + (trial.window_s or 0.0) + trial.difference for trial in trials.values())
    except (TypeError, AttributeError):
        return {}
    return trials


def _about(network: torch.nn.Module, task: RuntimeTask) -> dict[str, Any]:
    digest = hashlib.sha256(repr(network).encode())
    for tensor in network.state_dict().values():
        # As bytes, because arrays have no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    on_cpu = task.device.type == "cpu"
    packages = (package for runtime in RUNTIMES.values() for package in runtime.packages)
    machine = {
        "device": task.device.type,
        "name": cpu_name() if on_cpu else torch.cuda.get_device_name(task.device),
        "num_cpus": cpu_budget(),
        "num_threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in ("torch", *packages)},
    }
    windows = {"batch_shape": list(task.batch_shape), "precision": task.precision.to_plain()}
    return {"machine": machine, "network": digest.hexdigest(), "windows": windows}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
