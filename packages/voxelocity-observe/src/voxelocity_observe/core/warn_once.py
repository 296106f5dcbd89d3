"""Warnings to the user, once for each cause however often it happens."""

from __future__ import annotations

import threading
from collections.abc import Callable

Warn = Callable[[str], None]


class WarnOnce:
    """Passes on the first text of each cause. Safe to use from several threads; a copy in another process starts fresh.

    Attributes:
        warn: what it passes texts to.

    Args:
        warn: called with each text; None drops them.
    """

    def __init__(self, warn: Warn | None) -> None:
        self.warn = warn
        self._causes: set[str] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[WarnOnce], tuple[Warn | None]]:
        return WarnOnce, (self.warn,)

    def __call__(self, cause: str, text: str) -> None:
        """Passes on the text, unless one of this cause was passed on before."""
        with self._lock:
            if self.warn is None or cause in self._causes:
                return
            self._causes.add(cause)
        self.warn(text)
