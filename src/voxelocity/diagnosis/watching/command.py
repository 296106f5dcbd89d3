"""Runs a command under the recorder, and under Nsight Systems if asked for, and samples the machine meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from voxelocity.core.errors import InputError
from voxelocity.diagnosis.facts import KernelGroup
from voxelocity.diagnosis.tracing.nsys import MISSING, Wrapped, report_groups, report_of, wrap
from voxelocity.diagnosis.watching.attach import recording_environment
from voxelocity.observe.command import run_command
from voxelocity.observe.samples import Sample
from voxelocity.observe.sampling import Sampler

_SAMPLE_PERIOD_S = 0.5
# A Python that can be watched is recorded within its first second; scripts may do something else before.
_QUIET_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long and how closely a command is watched.

    Attributes:
        seconds: seconds of counted steps, at most; then the program is ended.
        is_whole: the program runs to its own end instead, unchanged and without experiments.
        has_experiments: whether single stages are tried alone after the counted steps.
        has_nsys: whether Nsight Systems records it too, where it is installed.
        keeps_saves: whether the program may write its files while it is being ended; otherwise they stay unchanged.
    """

    seconds: float = 120.0
    is_whole: bool = False
    has_experiments: bool = True
    has_nsys: bool = False
    keeps_saves: bool = False


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What watching a command left, besides the recording.

    Attributes:
        status: the command's own exit status.
        sampled_from_s: when sampling began, on the clock of `ProcessFacts.began_s`; None where it never did.
        kernel_groups: of Nsight's report; empty where it made none.
        notes: sentences for the user.
    """

    status: int
    samples: Sequence[Sample]
    sampled_from_s: float | None = None
    kernel_groups: Mapping[str, KernelGroup] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def watch_command(
    command: Sequence[str], recording: Path, limits: Limits, *, tell: Callable[[str], None] | None = None
) -> Watched:
    """Runs it to its end, in this terminal.

    Args:
        command: program and arguments.
        recording: folder for the recorder's files; it exists. Nsight's report goes next to it.
        limits: how long and how closely.
        tell: called once with a sentence where nothing has been recorded for a while.
    """
    wrapped, notes = _under_nsys(command, recording.parent) if limits.has_nsys else (None, [])
    variables = recording_environment(
        # The program may change its folder.
        recording.absolute(),
        seconds=limits.seconds,
        whole=limits.is_whole,
        experiments=limits.has_experiments,
        nsys=wrapped is not None,
        keeps_saves=limits.keeps_saves,
    )
    watch = _HostWatch()

    def tick() -> None:
        nonlocal tell
        if tell is not None:
            if not any(recording.glob("*")):
                # The program itself may have removed the folder, which is not a reason to fail.
                after = f"within {_QUIET_S:.0f} s"
                tell(f"no Python that can be watched has started {after}; if it is already training, press Ctrl-C")
            tell = None

    try:
        status = run_command(
            command if wrapped is None else wrapped.command,
            environment=variables,
            on_start=watch.start,
            tick=None if tell is None else tick,
            tick_s=_QUIET_S,
        )
    finally:
        samples = watch.stop()
    groups: Mapping[str, KernelGroup] = {}
    if wrapped is not None:
        try:
            groups = report_groups(report_of(wrapped))
        except InputError as error:
            notes.append(str(error))
    return Watched(
        status=status, samples=samples, sampled_from_s=watch.began_s, kernel_groups=groups, notes=tuple(notes)
    )


def _under_nsys(command: Sequence[str], folder: Path) -> tuple[Wrapped | None, list[str]]:
    try:
        return wrap(command, folder.absolute()), []
    except InputError:
        return None, [f"{MISSING}; only torch.profiler watched"]


class _HostWatch:
    """Samples the machine from the command's start to its end; one use."""

    def __init__(self) -> None:
        self._sampler: Sampler | None = None

    def start(self, pid: int) -> None:
        """Begins to sample; called once the command has started."""
        self._sampler = Sampler(period_s=_SAMPLE_PERIOD_S, pid=pid)
        self._sampler.start()

    @property
    def began_s(self) -> float | None:
        """What the clock showed when sampling began; None where the command never started."""
        return None if self._sampler is None else self._sampler.begin_s

    def stop(self) -> Sequence[Sample]:
        """The samples; none where the command never started."""
        if self._sampler is None:
            return ()
        self._sampler.stop()
        return tuple(self._sampler.samples)
