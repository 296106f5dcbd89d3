"""Seconds of each transform by name: MONAI, TorchIO, torchvision and batchgenerators, in the process they run in.

MONAI's chains call every transform through one function, which is replaced. The others call objects; there the method
of a class and its subclasses is replaced. A MONAI transform that a program calls itself, outside of any `Compose` or
data set, is not seen. Time of a transform that another one calls counts only for the inner one.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from .interface import Moment, Writer
from .randomness import may_differ

# Library, module of its base class, name of the class, and the method that applies a transform.
_CLASSES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("torchio", "torchio.transforms.transform", "Transform", ("forward", "__call__")),
    ("torchvision", "torchvision.transforms.v2._transform", "Transform", ("forward",)),
    ("batchgenerators", "batchgenerators.transforms.abstract_transforms", "AbstractTransform", ("__call__",)),
    ("batchgeneratorsv2", "batchgeneratorsv2.transforms.base.basic_transform", "BasicTransform", ("__call__",)),
)
# torchvision's older transforms have no base class of their own.
_TORCHVISION = "torchvision.transforms.transforms"
_MONAI = "monai.transforms.transform"


class _Sums:
    def __init__(self, order: int, is_random: bool) -> None:
        self.order = order
        self.is_random = is_random
        self.num_calls = 0
        self.self_s = 0.0
        self.self_cpu_s = 0.0


class _Open:
    """A running call; `inner_s` are seconds of calls within it."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform
        self.inner_s = 0.0
        self.inner_cpu_s = 0.0


class Transforms:
    """Times transforms from `start` to `stop`, in every thread of this process and its forks.

    Cost: 8 microseconds per counted call (measured).

    Args:
        moment: where the program is; only calls that begin while it counts are counted.
    """

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._sums: dict[tuple[str, str], _Sums] = {}
        self._lock = threading.Lock()
        self._local = threading.local()
        self._undo: list[Callable[[], None]] = []
        self._done: set[tuple[Any, str]] = set()

    def start(self) -> None:
        """Replaces what the libraries imported so far call. Further calls add what was imported since."""
        module = sys.modules.get(_MONAI)
        for name in ("_apply_transform", "apply_transform"):
            if hasattr(module, name):
                self._replace(module, name, self._timed_function(getattr(module, name), "monai"))
                break
        for library, module_name, class_name, methods in _CLASSES:
            base = getattr(sys.modules.get(module_name), class_name, None)
            for cls in _family(base) if base is not None else ():
                self._replace_methods(cls, methods, library)
        for cls in list(vars(sys.modules.get(_TORCHVISION, object)).values()):
            if isinstance(cls, type) and cls.__module__ == _TORCHVISION:
                self._replace_methods(cls, ("forward",) if hasattr(cls, "forward") else ("__call__",), "torchvision")

    def stop(self) -> None:
        """Removes all hooks. What was timed stays, for `report`."""
        while self._undo:
            self._undo.pop()()
        self._done.clear()

    def report(self, writer: Writer) -> None:
        """Writes one event `transform` for each transform, in the order they were first met."""
        with self._lock:
            found = sorted(self._sums.items(), key=lambda item: item[1].order)
        names = [name for (_, name), _ in found]
        for (library, name), sums in found:
            writer.write(
                "transform",
                name=name if names.count(name) == 1 else f"{library}.{name}",
                library=library,
                num_calls=sums.num_calls,
                self_s=sums.self_s,
                self_cpu_s=sums.self_cpu_s,
                is_random=sums.is_random,
                order=sums.order,
            )

    def _replace_methods(self, cls: type, methods: tuple[str, ...], library: str) -> None:
        for name in methods:
            if name in vars(cls):
                self._replace(cls, name, self._timed_function(vars(cls)[name], library))

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        if (owner, name) in self._done:
            return
        self._done.add((owner, name))
        old = vars(owner)[name]
        setattr(owner, name, new)
        self._undo.append(lambda: setattr(owner, name, old))

    def _timed_function(self, original: Callable[..., Any], library: str) -> Callable[..., Any]:
        """`original`, whose first argument is the transform."""

        @wraps(original)
        def timed(*args: Any, **named: Any) -> Any:
            if not args or not self._moment.is_counting():
                return original(*args, **named)
            return self._time(library, args[0], original, args, named)

        return timed

    def _time(
        self, library: str, transform: Any, original: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        stack: list[_Open] = self._local.__dict__.setdefault("stack", [])
        if stack and stack[-1].transform is transform:
            # A method that calls the one it overrides is one call of one transform.
            return original(*args, **named)
        sums = self._sums_of(library, transform)
        mine = _Open(transform)
        stack.append(mine)
        began, began_cpu = time.perf_counter(), time.thread_time()
        try:
            return original(*args, **named)
        finally:
            seconds, cpu_s = time.perf_counter() - began, time.thread_time() - began_cpu
            stack.pop()
            if stack:
                stack[-1].inner_s += seconds
                stack[-1].inner_cpu_s += cpu_s
            with self._lock:
                sums.num_calls += 1
                sums.self_s += seconds - mine.inner_s
                sums.self_cpu_s += cpu_s - mine.inner_cpu_s

    def _sums_of(self, library: str, transform: Any) -> _Sums:
        name = _name_of(transform)
        key = (_library_of(transform, library), name)
        found = self._sums.get(key)
        if found is None:
            is_random = may_differ(transform)
            with self._lock:
                found = self._sums.setdefault(key, _Sums(len(self._sums), is_random))
        elif not found.is_random and may_differ(transform):
            found.is_random = True
        return found


def _name_of(transform: Any) -> str:
    """The class's name; a function's own name."""
    if (
        isinstance(transform, type)
        or not hasattr(transform, "__dict__")
        or callable(getattr(transform, "__get__", None))
    ):
        return str(getattr(transform, "__qualname__", type(transform).__name__))
    return type(transform).__name__


def _library_of(transform: Any, library: str) -> str:
    """`library` if the transform is its own, otherwise the package of the user's class."""
    package = (type(transform).__module__ or "").partition(".")[0]
    return package if package and package not in ("builtins", "functools") else library


def _family(base: type) -> Iterator[type]:
    """The class and every subclass that exists, each once."""
    met: list[type] = [base]
    for cls in met:
        subclasses: list[type] = cls.__subclasses__()
        met.extend(sub for sub in subclasses if sub not in met)
    return iter(met)
