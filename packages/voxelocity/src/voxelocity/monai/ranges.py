"""MONAI's `Range`: named spans around methods, functions and blocks, which NVIDIA's profilers show as NVTX ranges.

Without NVTX (a CPU build of torch, without the package `nvtx`), objects do not change and nothing is spent.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import FunctionType, GeneratorType, MethodType
from typing import Any, ClassVar

import torch
from monai.transforms.compose import Compose
from monai.utils import ensure_tuple
from torch.optim import Optimizer
from torch.utils.data import Dataset, IterableDataset

from voxelocity.monai.compared import RANGED_CLASS
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.spans import has_nvtx, span

_KNOWN_METHODS = ("forward", "__call__", "__next__", "__getitem__")
_Spans = tuple[tuple[str, str], ...]
"""(method, name of its range), ..."""


class Range:
    """A named span: `with Range("load"): ...`, or `Range()(thing)` around what a thing does.

    Decorated objects keep their class's name, results, `isinstance` and pickling, and a range ends even if the method
    raised. You can also decorate functions and generators, which returns a new object, and classes, which affects all
    of their objects.

    Args:
        name: of the range; by default the class's name, numbered from the second object on, `context_1` for a block.
        methods: names of the methods; by default `forward` of networks and losses, `step` of optimizers, `__getitem__`
            of data sets, `__iter__`'s steps of loaders, and otherwise those that exist of `forward`, `__call__`,
            `__next__` and `__getitem__`.
        append_method_name: name ranges `name.method`; by default where there are several methods.
        recursive: also decorate each entry of a list or tuple, or of a Compose and what it holds.
    """

    name_counter: ClassVar[dict[str, int]] = defaultdict(int)

    def __init__(
        self,
        name: str | None = None,
        methods: str | tuple[str, ...] | None = None,
        append_method_name: bool | None = None,
        recursive: bool = False,
    ) -> None:
        self.name = name
        self.methods = methods
        self.append_method_name = append_method_name
        self.recursive = recursive
        self._entered: list[span] = []

    def __call__(self, obj: Any) -> Any:
        """`obj` with ranges around its methods: the same object, except for functions, generators, lists and tuples.

        Raises:
            InputError: it has no such method, none that is known, or a class that cannot be extended.
        """
        if self.recursive:
            if isinstance(obj, list | tuple):
                return type(obj)(Range(recursive=True)(entry) for entry in obj)
            if isinstance(obj, Compose):
                obj.transforms = Range(recursive=True)(obj.transforms)
            self.recursive = False
        if self.name is None:
            name = _name_of(obj)
            self.name_counter[name] += 1
            count = self.name_counter[name]
            self.name = name if count == 1 else f"{name}_{count}"
        methods = ensure_tuple(_methods_of(obj) if self.methods is None else self.methods)
        self.methods = methods
        missing = [method for method in methods if not hasattr(obj, method)]
        if missing:
            raise InputError(f"Range: {type(obj).__name__} has no method {missing[0]!r}; name one that it has")
        if self.append_method_name is None:
            self.append_method_name = len(methods) > 1
        spans = tuple((m, f"{self.name}.{m}" if self.append_method_name else self.name) for m in methods)
        return _decorate(obj, spans) if has_nvtx() else obj

    def __enter__(self) -> Range:
        if self.name is None:
            self.name_counter["context"] += 1
            self.name = f"context_{self.name_counter['context']}"
        entered = span(self.name)
        entered.__enter__()
        self._entered.append(entered)
        return self

    def __exit__(self, type: object, value: object, traceback: object) -> None:
        self._entered.pop().__exit__(None, None, None)


def _name_of(obj: Any) -> str:
    if isinstance(obj, type | FunctionType | GeneratorType):
        return obj.__name__
    name = type(obj).__name__
    # Wrappers of many transforms say little by themselves.
    return f"{name}_{obj.name}" if "CuCIM" in name or "TorchVision" in name else name


def _methods_of(obj: Any) -> tuple[str, ...]:
    kind = obj if isinstance(obj, type) else type(obj)
    if isinstance(obj, FunctionType | MethodType):
        return ("__call__",)
    for base, methods in (
        (torch.nn.Module, ("forward",)),
        (Optimizer, ("step",)),
        (torch.autograd.Function, ("forward", "backward")),
        (IterableDataset, ("__iter__",)),
        (Dataset, ("__getitem__",)),
    ):
        if issubclass(kind, base):
            return methods
    # Of a class, what its objects have: every class can itself be called.
    has = hasattr if kind is not obj else _gives
    found = tuple(method for method in _KNOWN_METHODS if has(obj, method))
    if not found and hasattr(kind, "__iter__"):
        return ("__iter__",)
    if not found:
        raise InputError(
            f"Range: The method to be wrapped for this object [{kind.__name__}] is not recognized; name it with "
            f"methods=..., or give the object one of {', '.join(_KNOWN_METHODS)}"
        )
    return found


def _gives(kind: type, method: str) -> bool:
    return any(method in vars(base) for base in kind.__mro__)


def _decorate(obj: Any, spans: _Spans) -> Any:
    if isinstance(obj, FunctionType | MethodType):
        return _spanned(obj, "__call__", spans[0][1])
    if isinstance(obj, GeneratorType):
        return _steps(obj, spans[0][1])
    if isinstance(obj, type):
        for method, name in spans:
            setattr(obj, method, _spanned(getattr(obj, method), method, name))
        return obj
    # A scheduler, for one, may have put a method of its own on the object, before the class's.
    own = [span for span in spans if span[0] in getattr(obj, "__dict__", {})]
    for method, name in own:
        setattr(obj, method, _spanned(getattr(obj, method), method, name))
    if rest := tuple(span for span in spans if span not in own):
        try:
            obj.__class__ = _spanned_class(obj.__class__, rest)
        except TypeError as error:
            raise InputError(
                f"Range: methods of {type(obj).__name__} cannot be replaced ({error}); "
                "put `with Range(...)` around its use"
            ) from error
    return obj


def _spanned(function: Callable[..., Any], method: str, name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if method == "__iter__":
            return _steps(iter(function(*args, **kwargs)), name)
        with span(name):
            return function(*args, **kwargs)

    return call


def _steps(iterator: Iterator[Any], name: str) -> Iterator[Any]:
    """The iterator's items, each made in a range."""
    while True:
        with span(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


@functools.cache
def _spanned_class(owner: Any, spans: _Spans) -> type:
    """A class that differs from its owner only in these methods, pickled through the owner."""

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        make, arguments, *rest = owner.__reduce_ex__(self, protocol)
        replaced = tuple(owner if argument is type(self) else argument for argument in arguments)
        return (_rebuild, (make, replaced, spans), *rest)

    body: dict[str, Any] = {method: _spanned(getattr(owner, method), method, name) for method, name in spans}
    names = {"__module__": owner.__module__, "__qualname__": owner.__qualname__, "__doc__": owner.__doc__}
    return type(owner.__name__, (owner,), {**body, **names, "__reduce_ex__": reduce, RANGED_CLASS: owner})


def _rebuild(make: Callable[..., Any], arguments: tuple[Any, ...], spans: _Spans) -> Any:
    obj = make(*arguments)
    if has_nvtx():
        obj.__class__ = _spanned_class(obj.__class__, spans)
    return obj
