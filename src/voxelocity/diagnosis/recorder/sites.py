"""Where the program makes its loaders, data sets and optimizers: the line, the call and the name given there.

A framework iterates a loader in its own code, and may make it again for its own purposes; the line to change is the one
in which the user made it.
"""

from __future__ import annotations

import ast
import linecache
import sys
import weakref
from functools import lru_cache
from typing import Any, Callable, NamedTuple

from .lines import OWN_CODE, line_of, shown_file
from .patches import Patches

_LONGEST_CALL = 400
# Makes its own loaders from the user's, over the same data set, in a call by the user.
_REMAKING = "accelerate."
_DATASETS = (("monai.data.dataset", "Dataset"), ("torchio.data.queue", "Queue"))


class Site(NamedTuple):
    """Where something was made: "file:line", the source of the call, and the variable that it was assigned to."""

    where: str
    call: str
    variable: str


NO_SITE = Site("", "", "")


class Sites:
    """Remembers where each loader, data set and optimizer was made, without keeping any of them alive."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._by_object: weakref.WeakKeyDictionary[Any, Site] = weakref.WeakKeyDictionary()
        self._by_dataset: dict[int, tuple[Callable[[], Any], Site]] = {}

    def hook(self, torch: Any, when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
        """Replaces the constructors."""
        self._hook_class(torch.utils.data.DataLoader)
        self._hook_class(torch.optim.Optimizer)
        for module, name in _DATASETS:
            when_imported(module, lambda found, name=name: self._hook_class(getattr(found, name)))  # type: ignore[misc]

    def unhook(self) -> None:
        """Restores the constructors."""
        self._patches.restore()

    def of(self, made: Any) -> Site:
        """Where this was made; for a loader that a framework made again, where the first one over its data was made."""
        try:
            found = self._by_object.get(made, NO_SITE)
        except TypeError:
            return NO_SITE
        dataset = getattr(made, "dataset", None)
        known = self._by_dataset.get(id(dataset))
        if not found.where and known is not None and known[0]() is dataset:
            return known[1]
        return found

    def _hook_class(self, cls: Any) -> None:
        original = cls.__init__

        def hooked_init(self_: Any, *args: Any, **kwargs: Any) -> None:
            original(self_, *args, **kwargs)
            self._note(self_)

        hooked_init.__wrapped__ = original  # type: ignore[attr-defined]
        hooked_init.__doc__ = original.__doc__
        self._patches.put(cls, "__init__", hooked_init)

    def _note(self, made: Any) -> None:
        frame = sys._getframe(2)
        own = OWN_CODE.innermost(frame)
        if own is None or _is_remade(frame, own):
            return
        names = tuple(cls.__name__ for cls in type(made).__mro__)
        site = self._site(own.f_code.co_filename, line_of(own), names)
        try:
            self._by_object[made] = site
            dataset = getattr(made, "dataset", None)
            if dataset is not None:
                self._by_dataset.setdefault(id(dataset), (weakref.ref(dataset), site))
        except TypeError:
            # Such as a list as a data set, which cannot be weakly referenced.
            return

    @staticmethod
    def _site(filename: str, number: int, names: tuple[str, ...]) -> Site:
        return Site(f"{shown_file(filename)}:{number}", *call_at(filename, number, names))


@lru_cache(maxsize=64)
def call_at(filename: str, number: int, names: tuple[str, ...]) -> tuple[str, str]:
    """The source of the call of one of these functions or classes within the statement that runs at this line, and what
    its value is assigned to ("" for neither)."""
    source = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "", ""
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= number <= (node.end_lineno or number)
        and (getattr(node.func, "id", "") or getattr(node.func, "attr", "")) in names
    ]
    if not calls:
        return "", ""
    call = max(calls, key=lambda node: node.lineno)
    targets = [
        node.targets[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value is call and len(node.targets) == 1
    ]
    text = ast.get_source_segment(source, call) or ""
    variable = ast.get_source_segment(source, targets[0]) or "" if targets else ""
    return (text, variable) if len(text) <= _LONGEST_CALL else ("", variable)


def _is_remade(frame: Any, own: Any) -> bool:
    """Whether a framework stands between the constructor and the user's own line."""
    while frame is not None and frame is not own:
        name = frame.f_globals.get("__name__", "")
        if isinstance(name, str) and name.startswith(_REMAKING):
            return True
        frame = frame.f_back
    return False
