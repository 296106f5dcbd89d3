"""Attributes of other classes and modules, replaced for a while and restored exactly."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Replaces attributes; `restore` puts all of them back, last one first."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name`. What the owner itself had (not a base class) is remembered."""
        self._done.append((owner, name, vars(owner).get(name, _ABSENT), value))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Puts everything back, except where other code has replaced our value meanwhile: theirs stays."""
        while self._done:
            owner, name, before, ours = self._done.pop()
            if vars(owner).get(name, _ABSENT) is not ours:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
