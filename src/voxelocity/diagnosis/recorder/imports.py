"""Calls back once the program has imported a module, and never imports anything itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from typing import Any, Callable

Callback = Callable[[Any], None]


class Imports:
    """A finder that finds nothing itself: it lets the others find, and calls back when the module is there.

    An import of any other module costs one dictionary lookup, about 0.1 microseconds.

    Args:
        on_error: called, within the `except` block, if a callback raised; the import continues.
    """

    def __init__(self, on_error: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._waiting: dict[str, list[Callback]] = {}
        self._begun: set[str] = set()

    def when_imported(self, name: str, callback: Callback) -> None:
        """Calls `callback(module)` once the module is imported; at once if it already is."""
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            self._call(callback, name, module)
            return
        if module is not None:
            self._begun.add(name)
        self._waiting.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Forgets all callbacks and restores the import system."""
        self._waiting.clear()
        self._begun.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        self.catch_up()
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None
            if finder is not self and find is not None:
                spec = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    loader: Any = _Calling(spec.loader, self)
                    spec.loader = loader
                return spec
        return None

    def catch_up(self) -> None:
        """Calls those who wait for a module whose import had begun when they asked, and has ended since.

        Such a module imports, before it is complete, the very module that causes its hook to be set. This check runs
        at each import, and should run once more when the program has finished importing.
        """
        for name in list(self._begun):
            module = sys.modules.get(name)
            if not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._begun.discard(name)
                if module is not None:
                    self.imported(module)

    def imported(self, module: Any) -> None:
        """Calls those who wait for this module."""
        for callback in self._waiting.pop(module.__name__, []):
            self._call(callback, module.__name__, module)

    def _call(self, callback: Callback, name: str, module: Any) -> None:
        try:
            callback(module)
        except Exception:
            self._on_error(f"{name} could not be watched")


class _Calling:
    """Wraps the module's own loader: reports when it is done, and puts it back in its place."""

    def __init__(self, loader: Any, imports: Imports) -> None:
        self._loader = loader
        self._imports = imports

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imports.imported(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
