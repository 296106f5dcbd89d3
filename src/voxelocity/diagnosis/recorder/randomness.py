"""Whether a transform may give another result when it is called again on the same item, as far as its class tells."""

from __future__ import annotations

from typing import Any

# Names in the method resolution order that promise it (MONAI, TorchIO 1).
_RANDOM_BASES = frozenset({"RandomizableTrait", "RandomizableTransform", "RandomTransform", "_RandomApplyTransform"})
# Choosers that are random even where everything within them is not.
_RANDOM_NAMES = frozenset(
    {
        "OneOf", "SomeOf", "RandomOrder", "RandomChoice", "RandomApply", "OneOfTransform", "RndTransform",
        "ColorJitter", "AutoAugment", "RandAugment", "TrivialAugmentWide", "AugMix", "GaussianBlur", "GaussianNoise",
        "ElasticTransform", "MixUp", "CutMix", "JPEG", "ScaleJitter",
    }
)  # fmt: skip
# batchgenerators marks nothing; these of its transforms draw no number.
_FIXED_BATCHGENERATORS = (
    "NumpyToTensor", "ToTensor", "ListToTensor", "Rename", "Remove", "Convert", "Downsample", "MaskTransform",
    "MaskImage", "CenterCrop", "PadTransform", "ZeroMeanUnitVariance", "MeanStdNormalization", "RangeTransform",
    "CutOffOutliers", "ResampleTransform", "ResizeTransform", "ConcatSegmentations", "CopyTransform", "AddToDict",
    "AppendChannels", "Compose", "MoveSegAsOneHot",
)  # fmt: skip
# TorchIO 2 draws the noise of these even where their parameters are fixed; version 1 has such names for replays.
_NOISE_OF_TORCHIO = frozenset({"Noise", "Motion", "Swap", "ElasticDeformation"})
_PROBABILITIES = ("p", "prob", "apply_probability", "flip_probability")
_CHILDREN = ("transforms", "list_of_transforms", "transform")
_DEEPEST = 8


def may_differ(transform: Any, depth: int = 0) -> bool:
    """Whether the transform, or one within it, draws random numbers; unknown classes count as fixed.

    A class of a person that draws without any mark of its library is taken for fixed.
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
    return _is_sometimes(transform) or _has_ranges(transform)


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
    """Whether it is applied with a probability between none and one."""
    chances = [getattr(transform, name, None) for name in _PROBABILITIES]
    return any(isinstance(chance, (int, float)) and 0 < chance < 1 for chance in chances)


def _has_ranges(transform: Any) -> bool:
    """Whether one of its parameters is drawn from a range, as TorchIO 2 marks them."""
    values = vars(transform).values() if hasattr(transform, "__dict__") else ()
    return any(getattr(value, "is_deterministic", True) is False for value in values)
