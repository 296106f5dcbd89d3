"""Names of a package that are imported at their first use, so that its parts without torch do not import torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def first_use(package: str, modules: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its `__name__`.
        modules: names that it offers, by the module inside it that defines them.
    """
    where = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = value_of(f"{package}.{where[name]}", name)
        setattr(sys.modules[package], name, value)
        return value

    return get


def value_of(module: str, name: str) -> Any:
    """`name` of one of our modules, imported now: for tables of what is imported at its first use.

    Ruff forbids `importlib.import_module` in modules that `pyproject.toml` does not list, because import contracts do
    not see what a text names.
    """
    return getattr(importlib.import_module(module), name)
