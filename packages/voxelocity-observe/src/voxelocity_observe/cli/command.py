"""What a command is to the command line, and where those of each distribution are listed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import typer
from typer.core import TyperCommand

TABLES = (
    "voxelocity.cli.commands",
    "voxelocity_observe.cli.commands",
    "voxelocity_lab.cli.commands",
)
"""Modules with `COMMANDS`, in the order of `--help`; those that are not installed are left out.

A list of names rather than entry points: it also works from PYTHONPATH, without an installation, and reading the
metadata of all installed packages would take `--help` longer than everything else it does.
"""

Panel = Literal["Train", "Use", "Understand", "Maintain"]
PANELS: tuple[Panel, ...] = ("Train", "Use", "Understand", "Maintain")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of `voxelocity`.

    Attributes:
        name: as users type it.
        run: the function whose signature has its options, or a group of commands.
        panel: under which `--help` lists it.
        settings: of click's context.
        starts: whose programs it starts: "program" for the user's own, with the user's own environment variables,
            "peers" for peers' scripts, whose threads must wait as they do when the user starts them.
    """

    name: str
    run: Callable[..., Any] | typer.Typer
    panel: Panel
    settings: Mapping[str, Any] = field(default_factory=dict)
    starts: Literal["", "program", "peers"] = ""


METAVARS: Mapping[type, str] = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
"""What `--help` shows for a value."""


def _metavar(parameter: Any) -> str:
    """Of an option, by its type, which only a typer of our kind knows."""
    annotation = str(getattr(getattr(parameter, "type_descriptor", None), "annotation", ""))
    return next((shown for kind, shown in METAVARS.items() if kind.__name__ in annotation), "VALUE")


class PlainCommand(TyperCommand):
    """A command whose help names values as users write them, without types of Python."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            if parameter.param_type_name != "argument":
                if parameter.metavar is None and not getattr(parameter, "is_flag", False):
                    parameter.metavar = _metavar(parameter)
            else:
                parameter.metavar = parameter.metavar or (parameter.name or "").upper()
                # Typer's own, which lists the type next to the name.
                parameter.display_type_rich = lambda **_: ""  # type: ignore[attr-defined]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command: options, then arguments, those that may be left out in brackets."""
        pieces = [self.options_metavar or ""]
        for parameter in self.params:
            if parameter.param_type_name == "argument":
                name = parameter.metavar or ""
                name += "..." if parameter.nargs != 1 and "..." not in name else ""
                pieces.append(name if parameter.required else f"[{name.strip('[]')}]")
        return pieces


def installed_commands() -> Iterator[Command]:
    """The commands of all installed distributions, panel by panel."""
    tables = [importlib.import_module(table) for table in TABLES if importlib.util.find_spec(table.partition(".")[0])]
    for panel in PANELS:
        yield from (command for table in tables for command in table.COMMANDS if command.panel == panel)


def add_commands(app: typer.Typer) -> dict[str, Command]:
    """The commands by name, after adding them to a command line."""
    commands = {command.name: command for command in installed_commands()}
    for command in commands.values():
        if isinstance(command.run, typer.Typer):
            app.add_typer(command.run, name=command.name, rich_help_panel=command.panel)
        else:
            settings = dict(command.settings)
            app.command(command.name, cls=PlainCommand, context_settings=settings, rich_help_panel=command.panel)(
                command.run
            )
    return commands


_ELSEWHERE = {
    **dict.fromkeys(("init", "plan", "train", "tune", "launch", "nnunet", "predict"), "voxelocity"),
    **dict.fromkeys(("export", "evaluate", "report", "cache"), "voxelocity"),
    **dict.fromkeys(("demo", "recipe", "bench"), "voxelocity[lab]"),
}


def missing_distribution(command: str) -> str:
    """What to install for a command that exists, but not here; empty if there is no such command."""
    return _ELSEWHERE.get(command, "")


def engine_function(module: str, name: str) -> Callable[..., Any] | None:
    """A function of the engine, by the name of its module; None if only the observer is installed."""
    if importlib.util.find_spec("voxelocity") is None:
        return None
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the user gave this option rather than relying on its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
