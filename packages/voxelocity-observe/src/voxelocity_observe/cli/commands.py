"""The commands that look at any program, and at this machine."""

from __future__ import annotations

from voxelocity_observe.cli import diagnose, doctor, explain, monitor
from voxelocity_observe.cli.command import Command

COMMANDS = (
    Command(name="doctor", run=doctor.doctor, panel="Maintain"),
    Command(
        name="diagnose",
        run=diagnose.diagnose,
        panel="Understand",
        settings=diagnose.CONTEXT_SETTINGS,
        starts="program",
    ),
    Command(name="explain", run=explain.explain, panel="Understand"),
    Command(
        name="monitor",
        run=monitor.monitor,
        panel="Understand",
        # Everything after the watched command's name belongs to it, options included.
        settings={"allow_interspersed_args": False},
        starts="program",
    ),
)
