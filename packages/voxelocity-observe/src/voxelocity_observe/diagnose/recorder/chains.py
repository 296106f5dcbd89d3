"""Where the transforms of a chain are written: the lines of the list that the user gives to a `Compose`.

A worker that is forked knows the places, too; one that is spawned does not.
"""

from __future__ import annotations

import ast
import linecache
import sys
import weakref
from functools import lru_cache, partial, wraps
from typing import Any

from .hooks import AttributePatches, WhenImported
from .lines import NOWHERE, OWN_CODE, SourceLine, line_of

_CHAINS = (
    ("monai.transforms.compose", "Compose"),
    ("torchio.transforms.augmentation.composition", "Compose"),
    ("torchvision.transforms.transforms", "Compose"),
)
_places: dict[int, tuple[weakref.ref[Any], SourceLine]] = {}
"""By `id` of a transform."""


class Chains:
    """Remembers where each transform of a chain is written, without keeping any of them alive."""

    def __init__(self) -> None:
        self._patches = AttributePatches()

    def hook(self, when_imported: WhenImported) -> None:
        """Replaces the constructors, once the program imports the classes."""
        for module, name in _CHAINS:
            when_imported(module, partial(self._hook_class, name))

    def unhook(self) -> None:
        """Restores the constructors."""
        self._patches.restore()

    def _hook_class(self, name: str, module: Any) -> None:
        cls = getattr(module, name, None)
        if cls is None:
            return
        original = cls.__init__

        @wraps(original)
        def hooked_init(self_: Any, *args: Any, **kwargs: Any) -> None:
            original(self_, *args, **kwargs)
            _note(args[0] if args else kwargs.get("transforms"))

        self._patches.put(cls, "__init__", hooked_init)


def written_at(transform: Any) -> SourceLine:
    """The user's line in which this transform of a chain is written; empty if that is not known."""
    known = _places.get(id(transform))
    return known[1] if known is not None and known[0]() is transform else NOWHERE


def _note(transforms: Any) -> None:
    own = OWN_CODE.innermost(sys._getframe(2))
    if own is None or not isinstance(transforms, (list, tuple)):
        return
    filename = own.f_code.co_filename
    lines = _lines_of_list(filename, line_of(own), len(transforms))
    for transform, number in zip(transforms, lines):
        try:
            _places[id(transform)] = weakref.ref(transform), OWN_CODE.at(filename, number, own.f_globals)
        except TypeError:
            # Such as a builtin function, which cannot be weakly referenced.
            continue


@lru_cache(maxsize=64)
def _lines_of_list(filename: str, number: int, length: int) -> tuple[int, ...]:
    """Lines of the elements of the list of this length that is given to a call running at this line; empty if none is
    written there."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ()
    lists = [
        given
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno <= number <= (node.end_lineno or number)
        for given in (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(given, (ast.List, ast.Tuple)) and len(given.elts) == length
    ]
    chains = [given for given in lists if all(isinstance(element, (ast.Call, ast.Name)) for element in given.elts)]
    innermost = max(chains, key=lambda given: given.lineno, default=None)
    return () if innermost is None else tuple(element.lineno for element in innermost.elts)
