"""Seconds of each transform by name: MONAI, TorchIO, torchvision and batchgenerators, in the process they run in.

MONAI's chains call every transform through one function, which is replaced. The others call objects; there the method
of a class and its subclasses is replaced. A MONAI transform that a program calls itself, outside of any `Compose` or
data set, is not seen. Time of a transform that another one calls counts only for the inner one.

Also, as far as its class shows, whether a transform may give another result when it is called again on the same item.
Libraries mark what draws random numbers. For the user's own class or function, the names that its code uses are read:
one that draws must never be taken for fixed, or caching its results would be called safe. What a random transform
applies within itself is part of it: TorchIO 1 draws parameters in RandomNoise and hands them to Noise.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from types import CodeType, FunctionType
from typing import Any

from .batches import loader_of_item
from .chains import written_at
from .hooks import AttributePatches
from .lines import NOWHERE, SourceLine, is_installed
from .steps import Moment
from .writer import Writer

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
# Names in the method resolution order that mark randomness (MONAI, TorchIO 1).
_RANDOM_BASES = frozenset({"RandomizableTrait", "RandomizableTransform", "RandomTransform", "_RandomApplyTransform"})
# Choosers that are random even if everything within them is not.
_RANDOM_NAMES = frozenset(
    {
        "OneOf", "SomeOf", "RandomOrder", "RandomChoice", "RandomApply", "OneOfTransform", "RndTransform",
        "ColorJitter", "AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix", "GaussianBlur", "GaussianNoise",
        "ElasticTransform", "MixUp", "CutMix", "JPEG", "ScaleJitter",
    }
)  # fmt: skip
# batchgenerators marks nothing; these of its transforms draw no random numbers.
_FIXED_BATCHGENERATORS = (
    "NumpyToTensor", "ToTensor", "ListToTensor", "Rename", "Remove", "Convert", "Downsample", "MaskTransform",
    "MaskImage", "CenterCrop", "PadTransform", "ZeroMeanUnitVariance", "MeanStdNormalization", "RangeTransform",
    "CutOffOutliers", "ResampleTransform", "ResizeTransform", "ConcatSegmentations", "CopyTransform", "AddToDict",
    "AppendChannels", "Compose", "MoveSegAsOneHot",
)  # fmt: skip
# TorchIO 2 draws the noise of these even where their parameters are fixed; version 1 has such names for replays.
_NOISE_OF_TORCHIO = frozenset({"Noise", "Motion", "Swap", "ElasticDeformation"})
_LIBRARIES = ("monai", "torchio", "torchvision", "batchgenerators", "batchgeneratorsv2")
# Where transforms of libraries hold the user's function.
_FUNCTIONS = ("func", "lambd", "function")
# Methods of Python's, NumPy's and torch's generators; so does anything that begins with "rand".
_DRAWING = frozenset(
    {
        "bernoulli", "bernoulli_", "choice", "choices", "default_rng", "gauss", "integers", "multinomial", "normal",
        "normal_", "normalvariate", "permutation", "permuted", "poisson", "shuffle", "standard_normal", "uniform",
        "uniform_",
    }
)  # fmt: skip
_draws_of: dict[int, tuple[Any, bool]] = {}
"""By `id` of a class or a function's code; holds it too, so the `id` stays unique."""
_PROBABILITIES = ("p", "prob", "apply_probability", "flip_probability")
_CHILDREN = ("transforms", "list_of_transforms", "transform")
_DEEPEST = 8


@dataclass
class _Sums:
    order: int
    is_random: bool
    place: SourceLine = NOWHERE
    num_calls: int = 0
    self_s: float = 0.0
    self_cpu_s: float = 0.0


@dataclass
class _Open:
    """A running call; `inner_s` are seconds of calls within it."""

    transform: Any
    is_random: bool
    inner_s: float = 0.0
    inner_cpu_s: float = 0.0


class TransformTimer:
    """Times transforms from `start` to `stop`, in every thread of this process and its forks.

    Cost: 8 microseconds per counted call (measured).

    Args:
        moment: where the program is; only calls that begin while it counts are counted.
    """

    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._sums: dict[tuple[str, str, int], _Sums] = {}
        self._lock = threading.Lock()
        self._local = threading.local()
        self._patches = AttributePatches()

    def start(self) -> None:
        """Replaces what the libraries imported so far call. Further calls add what was imported since."""
        module = sys.modules.get(_MONAI)
        for name in ("_apply_transform", "apply_transform"):
            if hasattr(module, name):
                self._replace(module, (name,), "monai")
                break
        for library, module_name, class_name, methods in _CLASSES:
            base = getattr(sys.modules.get(module_name), class_name, None)
            for cls in _family(base) if base is not None else ():
                self._replace(cls, methods, library)
        for cls in list(vars(sys.modules.get(_TORCHVISION, object)).values()):
            if isinstance(cls, type) and cls.__module__ == _TORCHVISION:
                self._replace(cls, ("forward",) if hasattr(cls, "forward") else ("__call__",), "torchvision")

    def stop(self) -> None:
        """Removes all hooks. What was timed stays, for `report`."""
        self._patches.restore()

    def report(self, writer: Writer) -> None:
        """Writes one event `transform` for each transform and loader, in the order they were first met."""
        with self._lock:
            found = sorted(self._sums.items(), key=lambda item: item[1].order)
        libraries: dict[str, set[str]] = {}
        for (library, name, _), _ in found:
            libraries.setdefault(name, set()).add(library)
        for (library, name, loader), sums in found:
            writer.write(
                "transform",
                name=name if len(libraries[name]) == 1 else f"{library}.{name}",
                library=library,
                loader=loader,
                where=sums.place.where,
                line=sums.place.line,
                num_calls=sums.num_calls,
                self_s=sums.self_s,
                self_cpu_s=sums.self_cpu_s,
                is_random=sums.is_random,
                order=sums.order,
            )

    def _replace(self, owner: Any, names: tuple[str, ...], library: str) -> None:
        """Times these functions of a class or module, if it has them itself and they are not timed yet.

        Other kinds, such as a static method, would get another first argument.
        """
        for name in names:
            function = vars(owner).get(name)
            if isinstance(function, FunctionType) and not self._patches.has(owner, name):
                self._patches.put(owner, name, self._timed_function(function, library))

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
        if stack and (stack[-1].transform is transform or _has_parts(stack[-1])):
            # A method that calls the one it overrides is one call of one transform, as is one with what it draws for.
            return original(*args, **named)
        sums = self._sums_of(library, transform)
        mine = _Open(transform, sums.is_random)
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
        key = (_library_of(transform, library), name, loader_of_item())
        found = self._sums.get(key)
        if found is None:
            is_random, place = may_differ(transform), written_at(transform)
            with self._lock:
                found = self._sums.setdefault(key, _Sums(len(self._sums), is_random, place))
        elif not found.is_random and may_differ(transform):
            found.is_random = True
        return found


def _has_parts(outer: _Open) -> bool:
    """Whether transforms within this one belong to it: it is random, and no container."""
    return outer.is_random and not _children(outer.transform)


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


def may_differ(transform: Any, depth: int = 0) -> bool:
    """Whether the transform, or one within it, draws random numbers, by the marks of its library or by its code.

    User code that calls another of the user's functions that draws is taken for fixed.
    """
    cls = type(transform)
    names = {base.__name__ for base in cls.__mro__}
    if cls.__name__ in _RANDOM_NAMES:
        return True
    children = _children(transform)
    if children and depth < _DEEPEST:
        # A container is as random as what it holds: MONAI's `Compose` is randomizable by its class.
        if any(may_differ(child, depth + 1) for child in children):
            return True
        return _is_sometimes(transform)
    if names & _RANDOM_BASES or cls.__name__.startswith("Rand"):
        return True
    library = (cls.__module__ or "").partition(".")[0]
    if library in ("batchgenerators", "batchgeneratorsv2"):
        return not cls.__name__.startswith(_FIXED_BATCHGENERATORS)
    if library == "torchio" and hasattr(transform, "per_instance") and cls.__name__ in _NOISE_OF_TORCHIO:
        return True
    return (
        _is_sometimes(transform)
        or _has_ranges(transform)
        or (library not in _LIBRARIES and _draws(transform))
        or any(_draws(function) for function in _functions(transform))
    )


def _functions(transform: Any) -> list[Any]:
    """Functions that a transform of a library was given to call."""
    found = [_attributes(transform).get(name) for name in _FUNCTIONS]
    return [
        function for held in found for function in (held if isinstance(held, tuple) else (held,)) if callable(function)
    ]


def _draws(transform: Any) -> bool:
    """Whether the user's class or function uses the name of something that draws."""
    key = getattr(transform, "__code__", type(transform))
    known = _draws_of.get(id(key))
    if known is None:
        classes = () if isinstance(key, CodeType) else key.__mro__
        methods = [getattr(value, "__code__", None) for base in classes for value in vars(base).values()]
        known = _draws_of[id(key)] = key, any(uses_drawing(code) for code in (key, *methods))
    return known[1]


def uses_drawing(code: Any) -> bool:
    """Whether the user's code uses the name of something that draws random numbers."""
    if not isinstance(code, CodeType) or is_installed(code.co_filename):
        return False
    if any(name in _DRAWING or name.startswith("rand") for name in code.co_names):
        return True
    return any(uses_drawing(inner) for inner in code.co_consts)


def _children(transform: Any) -> list[Any]:
    """Transforms that this one holds; a dictionary of transforms is TorchIO's with their weights."""
    attributes = _attributes(transform)
    for name in _CHILDREN:
        held = attributes.get(name)
        if held is None and name == "transforms":
            held = attributes.get("_modules", {}).get(name)
        if isinstance(held, (list, tuple, dict)) or (held is not None and type(held).__name__ == "ModuleList"):
            return [child for child in held if callable(child)]
        if callable(held) and name == "transform":
            return [held]
    return []


def _is_sometimes(transform: Any) -> bool:
    """Whether it is applied with a probability between 0 and 1."""
    chances = [getattr(transform, name, None) for name in _PROBABILITIES]
    return any(isinstance(chance, (int, float)) and 0 < chance < 1 for chance in chances)


def _has_ranges(transform: Any) -> bool:
    """Whether one of its parameters is drawn from a range, as TorchIO 2 marks them."""
    return any(getattr(value, "is_deterministic", True) is False for value in _attributes(transform).values())


def _attributes(transform: Any) -> dict[str, Any]:
    return vars(transform) if hasattr(transform, "__dict__") else {}
