"""Finds a function or class of the user's by its name in a configuration."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from voxelocity.core.errors import ConfigError


def find_factory(named: str, *, key: str) -> Callable[..., Any]:
    """What `named` names, imported.

    Args:
        named: package.module:name. Modules in the current folder are found too.
        key: of the configuration, for messages.

    Raises:
        ConfigError: there is no such module, or it does not have this name.
    """
    where, _, name = named.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        # As with `python -m`; an installed command does not search the folder in which it is called.
        sys.path.append(here)
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{key.partition('.')[0]}: {key} {named!r} cannot be imported ({error}); write package.module:name of a "
            "module that Python finds from here or on PYTHONPATH"
        ) from None
    return factory
