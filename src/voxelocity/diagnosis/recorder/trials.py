"""Steps that a program makes to choose how it will train: they do not belong to the training."""

from __future__ import annotations

from typing import Any, Callable

from .ledger import Ledger
from .patches import Patches

_TRIALS = (("voxelocity.planning.step_timing", "time_steps"),)


class Trials:
    """Ignores the functions that make such steps; their time counts for the part in which they are called."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._patches = Patches()

    def hook(self, when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
        """Hooks each of them when the program imports it."""
        for module, name in _TRIALS:
            when_imported(module, lambda found, name=name: self._hook(found, name))  # type: ignore[misc]

    def unhook(self) -> None:
        """Removes the hooks."""
        self._patches.restore()

    def _hook(self, module: Any, name: str) -> None:
        original, ledger = getattr(module, name), self._ledger

        def passed_over(*args: Any, **kwargs: Any) -> Any:
            depth, ledger.depth = ledger.depth, ledger.depth + 1
            try:
                return original(*args, **kwargs)
            finally:
                ledger.depth = depth

        self._patches.put(module, name, passed_over)
