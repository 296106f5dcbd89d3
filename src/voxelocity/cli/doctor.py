"""`voxelocity doctor`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from voxelocity.core.errors import ConfigError


def doctor(
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Look at the disk of this folder; the cache's if not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON.")] = False,
) -> None:
    """Show what this machine has, what is missing, and what each costs; status 1 where nothing can be trained."""
    if folder is not None and not folder.expanduser().is_dir():
        raise ConfigError(f"doctor: --folder {folder} is no folder; name one that exists")
    from voxelocity.core.console import PlainConsole
    from voxelocity.diagnosis.doctor import examine, show

    check_up = examine(_cache_folder() if folder is None else folder.expanduser())
    if as_json:
        print(json.dumps(check_up.to_plain(), indent=1), flush=True)
    else:
        console = PlainConsole()
        # Written by Python, not by rich, which makes status 1 of a reader that went away.
        with console.capture() as shown:
            show(check_up, console)
        print(shown.get(), end="", flush=True)
    if not check_up.can_train:
        raise typer.Exit(1)


def _cache_folder() -> Path:
    # The cache needs numpy and more. Where one of these is broken, that is what the doctor is asked for, and must not
    # be what ends it: one built for another numpy raises ValueError or AttributeError.
    try:
        from voxelocity.data.cache import default_cache_folder
    except (ImportError, ValueError, AttributeError):
        return Path.home()
    return default_cache_folder()
