"""Whether a transform may give another result when it is called again on the same item, as far as its class shows.

Libraries mark what draws random numbers. For the user's own class or function, the names that its code uses are read:
one that draws must never be taken for fixed, or caching its results would be called safe.
"""

from __future__ import annotations

from types import CodeType
from typing import Any

from .lines import is_installed

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
        or any(_draws(one) for one in _functions(transform))
    )


def _functions(transform: Any) -> list[Any]:
    """Functions that a transform of a library was given to call."""
    found = [vars(transform).get(name) for name in _FUNCTIONS] if hasattr(transform, "__dict__") else []
    return [one for held in found for one in (held if isinstance(held, tuple) else (held,)) if callable(one)]


def _draws(transform: Any) -> bool:
    """Whether the user's class or function uses the name of something that draws."""
    key = getattr(transform, "__code__", type(transform))
    known = _draws_of.get(id(key))
    if known is None:
        classes = () if isinstance(key, CodeType) else key.__mro__
        methods = [getattr(value, "__code__", None) for base in classes for value in vars(base).values()]
        known = _draws_of[id(key)] = key, any(_uses_drawing(code) for code in (key, *methods))
    return known[1]


def _uses_drawing(code: Any) -> bool:
    if not isinstance(code, CodeType) or is_installed(code.co_filename):
        return False
    if any(name in _DRAWING or name.startswith("rand") for name in code.co_names):
        return True
    return any(_uses_drawing(inner) for inner in code.co_consts)


def _children(transform: Any) -> list[Any]:
    """Transforms that this one holds; a dictionary of transforms is TorchIO's with their weights."""
    for name in _CHILDREN:
        held = vars(transform).get(name) if hasattr(transform, "__dict__") else None
        if held is None and name == "transforms":
            held = vars(transform).get("_modules", {}).get(name) if hasattr(transform, "__dict__") else None
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
    values = vars(transform).values() if hasattr(transform, "__dict__") else ()
    return any(getattr(value, "is_deterministic", True) is False for value in values)
