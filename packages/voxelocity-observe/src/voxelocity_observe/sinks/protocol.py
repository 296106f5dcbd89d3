"""What a sink is, and what it receives when a run begins or resumes."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from voxelocity_observe.core.errors import ConfigError

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run that begins or resumes.

    Attributes:
        name: for display.
        folder: where sinks keep their files, below the run's own; it may not exist yet.
        config: the plan, nested plain data.
        environment: versions and machine.
        told: events of earlier sessions, oldest first.
        kept: those that still count. A session that was killed after its last checkpoint wrote more: steps that are
            done again.
        first_step: the optimizer step that this session continues from.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    told: Sequence[Event] = field(default=())
    kept: Sequence[Event] = field(default=())
    first_step: int = 0

    @property
    def is_resumed(self) -> bool:
        return bool(self.told)


class Sink(Protocol):
    """A place for the events of one run. One thread makes all calls, in this order: `begin`, `write` ..., `end`.

    Any of them may raise: the run says so once, and continues without the sink. A slow sink slows only itself. After a
    resumption, it continues the record of the run and holds each point once.

    Attributes:
        name: as `--log` has it.
    """

    @property
    def name(self) -> str: ...

    def begin(self, run: RunStart) -> None:
        """Opens the record of the run, the one of its earlier sessions if there were any."""

    def write(self, event: Event) -> None:
        """Takes one event, a line of `events.jsonl` as plain data: numbers that were not finite are None."""

    def end(self) -> None:
        """Closes the record, whatever the last event was: "run_finished", "interrupted" or any other, for a failure."""


def need_package(module: str, *, sink: str) -> None:
    """Makes sure that a package is installed, without importing it.

    Raises:
        ConfigError: it is not.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"sinks: --log {sink} needs the package {module}, which is not installed; "
            f"pip install 'voxelocity[{sink}]', or leave it out"
        )
