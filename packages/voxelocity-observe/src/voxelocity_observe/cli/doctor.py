"""`voxelocity doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from voxelocity_observe.core.errors import ConfigError


def doctor(
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Check the disk of this folder; default: the cache's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what this machine has, what is missing, and what that costs; status 1 if it cannot train."""
    if folder is not None and not folder.expanduser().is_dir():
        raise ConfigError(f"doctor: --folder {folder} is not a folder; name one that exists")
    from voxelocity_observe.core.console import PlainConsole
    from voxelocity_observe.core.host import default_cache_folder
    from voxelocity_observe.diagnose.doctor import examine, show

    check_up = examine(default_cache_folder() if folder is None else folder.expanduser())
    if as_json:
        print(json.dumps(check_up.to_plain(), indent=1), flush=True)
    else:
        console = PlainConsole()
        # Written by Python, not by rich, which exits with status 1 if the reader closed the pipe.
        with console.capture() as shown:
            show(check_up, console)
        print(shown.get(), end="", flush=True)
    if not check_up.can_train:
        raise typer.Exit(1)
