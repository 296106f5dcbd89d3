"""Whether memory grows from step to step, and which of the program's variables grow with it.

Looks at the user's own variables now and then: lists that grow with each step, sums that keep the graph of each loss
added to them. Changes nothing and keeps none of them alive.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

from .lines import OWN_CODE, module_of, shown_file, variables_of
from .writer import Writer

_MAX_SAMPLES = 128
_MAX_FRAMES = 32
_MAX_NAMES = 2000
_MAX_DEPTH = 5000
_GROWING = 0.5
_CONTAINERS = (list, deque, set)


class Seen(NamedTuple):
    """A variable that may grow: how many items it holds, the last one, and the file it is used in."""

    length: int
    last: Any
    filename: str
    first_line: int


class Growth:
    """Samples the memory of this process and the variables on the stack while steps are counted.

    Cost: 20 microseconds per step for the memory; the variables are checked when the number of steps has doubled.

    Args:
        torch: the module.
        writer: of this process.
    """

    def __init__(self, torch: Any, writer: Writer) -> None:
        self._torch = torch
        self._writer = writer
        self._samples: list[tuple[int, int, int]] = []
        self._every = 1
        self._lengths: dict[str, tuple[int, int]] = {}
        self._next_look = 0
        self._held: list[dict[str, Any]] = []
        self._written: tuple[int, int] | None = None

    def after_step(self, num_counted: int, device: Any) -> None:
        """Call this in the training's thread when a counted step has ended."""
        if num_counted % self._every == 0:
            on_device = self._torch.cuda.memory_allocated(device) if device is not None and device.type == "cuda" else 0
            self._samples.append((num_counted, _resident_bytes(), on_device))
            if len(self._samples) >= _MAX_SAMPLES:
                self._samples, self._every = self._samples[::2], 2 * self._every
        if num_counted >= self._next_look:
            self._next_look = max(4, 2 * num_counted)
            self._look(num_counted, sys._getframe(1))

    def write(self, *, is_last: bool = False) -> None:
        """Event `memory`, and an event `held` for each variable that grew with the steps, if there is news."""
        state = (self._next_look, self._every)
        if self._samples and (is_last or state != self._written):
            self._written = state
            self._writer.write("memory", samples=[list(sample) for sample in self._samples])
            for fields in self._held:
                self._writer.write("held", **fields)

    def _look(self, num_counted: int, frame: FrameType | None) -> None:
        tensor = self._torch.Tensor
        held: list[dict[str, Any]] = []
        for name, seen in _variables(frame, tensor):
            first_steps, first_length = self._lengths.setdefault(name, (num_counted, seen.length))
            num_steps, grown = num_counted - first_steps, seen.length - first_length
            if num_steps < 2 or grown < _GROWING * num_steps or not hasattr(seen.last, "nbytes"):
                continue
            line = _growing_line(name.rpartition(":")[2], seen.filename, seen.first_line)
            held.append(
                {
                    "name": name.rpartition(":")[2],
                    "where": f"{shown_file(seen.filename)}:{line}",
                    "line": linecache.getline(seen.filename, line).strip()[:160],
                    "count": grown,
                    "num_steps": num_steps,
                    "item_bytes": int(seen.last.nbytes),
                    "holds_graph": isinstance(seen.last, tensor) and seen.last.grad_fn is not None,
                }
            )
        self._held = held


def _variables(frame: FrameType | None, tensor: Any) -> Iterator[tuple[str, Seen]]:
    """Variables of the user's own frames that hold several items, and sums of tensors that hold their graph."""
    left = _MAX_NAMES
    shown_globals: set[int] = set()
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        if OWN_CODE.holds(code, module_of(frame)):
            namespaces = [variables_of(frame)]
            if id(frame.f_globals) not in shown_globals and code.co_name != "<module>":
                shown_globals.add(id(frame.f_globals))
                namespaces.append(frame.f_globals)
            for names in namespaces:
                for name, value in list(names.items())[:left]:
                    left -= 1
                    for path, length, last in _lengths_of(name, value, tensor):
                        yield (
                            f"{code.co_filename}:{code.co_name}:{path}",
                            Seen(length, last, code.co_filename, code.co_firstlineno),
                        )
        frame = frame.f_back


def _lengths_of(name: str, value: Any, tensor: Any, depth: int = 0) -> Iterator[tuple[str, int, Any]]:
    if isinstance(value, tensor):
        if value.grad_fn is not None:
            yield name, _num_added(value.grad_fn), value
    elif isinstance(value, _CONTAINERS):
        last = next(iter(value), None) if isinstance(value, set) else value[-1] if value else None
        yield name, len(value), _first_with_bytes(last)
    elif isinstance(value, dict) and len(value) <= 64:
        for key, inner in list(value.items()):
            if isinstance(inner, _CONTAINERS):
                yield from _lengths_of(f"{name}[{key!r}]", inner, tensor, depth + 1)
    elif depth == 0 and hasattr(value, "__dict__") and not isinstance(value, type):
        kind = type(value)
        module = sys.modules.get(kind.__module__)
        filename = getattr(module, "__file__", None) or ""
        if filename and OWN_CODE.holds_file(filename, kind.__module__):
            for attribute, inner in list(vars(value).items()):
                if isinstance(inner, (*_CONTAINERS, dict, tensor)) and not attribute.startswith("_"):
                    yield from _lengths_of(f"{name}.{attribute}", inner, tensor, depth + 1)


def _first_with_bytes(value: Any) -> Any:
    """A tensor or an array, also the first one of a tuple or a dictionary."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
    return next((item for item in inner[:8] if hasattr(item, "nbytes")), None)


def _num_added(function: Any) -> int:
    """How many tensors were added up, each with its own graph."""
    count = 0
    while count < _MAX_DEPTH and type(function).__name__ in ("AddBackward0", "DivBackward0", "MulBackward0"):
        count += 1
        function = function.next_functions[0][0]
    return count


def _growing_line(name: str, filename: str, first_line: int) -> int:
    """The line that adds to the variable; the function's first line if none is found."""
    plain = re.escape(name)
    grows = re.compile(rf"(?<![\w.]){plain}\s*(\.(append|extend|add|appendleft)\(|\+=|=\s*{plain}\s*\+)")
    lines = linecache.getlines(filename)
    found = [number for number, line in enumerate(lines, start=1) if grows.search(line)]
    if not found and "." in name and not name.startswith("self."):
        # Methods of the object add to it, anywhere in the file.
        return _growing_line("self." + name.partition(".")[2], filename, 0) or first_line
    return next((number for number in found if number >= first_line), found[0] if found else first_line)


def _resident_bytes() -> int:
    """Resident memory of this process, 0 where the system does not report it."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
