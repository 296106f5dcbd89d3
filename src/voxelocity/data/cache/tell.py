"""What a cache has to say to the user, once for each cause however often it happens."""

from __future__ import annotations

import threading
from collections.abc import Callable

Warn = Callable[[str], None]


class TellOnce:
    """Passes the first text of each cause on. Safe to use from several threads; a copy for another process begins anew.

    Args:
        warn: told; None says nothing.
    """

    def __init__(self, warn: Warn | None) -> None:
        self._warn = warn
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[TellOnce], tuple[Warn | None]]:
        return TellOnce, (self._warn,)

    def __call__(self, cause: str, text: str) -> None:
        """Tells the text, unless one of this cause was told before."""
        with self._lock:
            if self._warn is None or cause in self._told:
                return
            self._told.add(cause)
        self._warn(text)
