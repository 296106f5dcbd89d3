"""The source files behind a user's module and the user's other modules that it uses."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from types import ModuleType

from voxelocity.interop.monai.versions import version_of


def module_files(module: ModuleType) -> list[tuple[str, str]] | None:
    """Name and digest of the source of the module and of every non-installed module that its names lead to, sorted.

    None if one of them has no source file.
    """
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        next_one = waiting.pop()
        if next_one.__name__ in found:
            continue
        file = getattr(next_one, "__file__", None)
        if file is None or not Path(file).is_file():
            return None
        found[next_one.__name__] = hashlib.blake2b(Path(file).read_bytes(), digest_size=20).hexdigest()
        waiting.extend(_own_modules(next_one))
    return sorted(found.items())


def _own_modules(module: ModuleType) -> list[ModuleType]:
    names = {
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        for value in vars(module).values()
        if isinstance(value, (ModuleType, type)) or callable(value)
    }
    own = sorted(name for name in names if isinstance(name, str) and version_of(name) is None)
    return [sys.modules[name] for name in own if name in sys.modules and name != "builtins"]
