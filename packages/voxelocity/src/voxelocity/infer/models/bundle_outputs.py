"""The postprocessing of a MONAI bundle: what the channels of its network mean, and what is brought back to the scan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from voxelocity.infer.models.bundle_config import BundleConfig, Component
from voxelocity.infer.models.bundle_expressions import ExpressionError, priorities
from voxelocity.infer.models.bundle_grid import Back
from voxelocity.infer.models.bundle_prepare import BundlePreparation, check_keys
from voxelocity_observe.core.plain import excerpt, shortened

_CHAIN = "postprocessing"
_WITHOUT_EFFECT = ("SaveImaged", "EnsureTyped", "ToTensord", "ToDeviced", "DeleteItemsd")
_ACTIVATION, _DISCRETE, _INVERSE = "Activationsd", "AsDiscreted", "Invertd"
_LABEL_MAP, _LARGEST = "Lambdad", "KeepLargestConnectedComponentd"
# VISTA3D's: the largest logit above 0.
_PROMPTED = "VistaPostTransformd"
_KNOWN = (_ACTIVATION, _INVERSE, _DISCRETE, _LABEL_MAP, _LARGEST, _PROMPTED)
# Predictions have no NaN here.
_NO_NAN = re.compile(r"\$\s*lambda (\w+): torch\.nan_to_num\(\1, nan=\d+\)\s*")
_NEVER = 1_000
# Voxels that touch at a corner are connected, MONAI's default and ours.
_CONNECTIVITY = (None, 3)


@dataclass(frozen=True, kw_only=True)
class OutputMeaning:
    """What becomes of the network's output.

    Attributes:
        labels: file value to class name.
        restored: what is interpolated if scores are brought back.
        channels: of the network, for overlapping classes: later ones overwrite earlier ones. Empty if all are used.
        region_order: class index of each of these.
        has_background: whether the network's only channel is the second of two classes.
        back: what is brought back.
        kept_largest: class indices of which only the largest component is kept.
        is_kept_on_scan: whether components are those on the scan's grid.
    """

    labels: Mapping[int, str]
    restored: Literal["probabilities", "logits"] = "logits"
    channels: tuple[int, ...] = ()
    region_order: tuple[int, ...] = ()
    has_background: bool = False
    back: Back = "scores"
    kept_largest: tuple[int, ...] = ()
    is_kept_on_scan: bool = False

    @property
    def doubts(self) -> tuple[str, ...]:
        """What users should know of predictions that are those of the bundle."""
        if self.back != "linear":
            return ()
        return (
            "the bundle interpolates the numbers of classes (nearest_interp false after AsDiscreted): a class "
            "may appear between two others if its number lies between theirs. Predictions are MONAI's, rounded",
        )


@dataclass(frozen=True)
class _Chain:
    """The steps in order, each at most once, and what the scan's preparation does.

    Attributes:
        config: for messages.
        steps: by name.
        preparation: of the scan.
    """

    config: BundleConfig
    steps: Mapping[str, Component]
    preparation: BundlePreparation

    def at(self, name: str) -> int:
        """The place of a step; a large number if there is none."""
        return list(self.steps).index(name) if name in self.steps else _NEVER

    def is_before(self, first: str, second: str) -> bool:
        """Whether there is a first step, and before the second."""
        return first in self.steps and self.at(first) < self.at(second)

    @property
    def resamples(self) -> bool:
        """Whether a step interpolates."""
        return _INVERSE in self.steps and self.preparation.resamples

    @property
    def interpolates_activated(self) -> bool:
        """Whether probabilities are interpolated, not logits or classes."""
        return self.resamples and self.is_before(_ACTIVATION, _INVERSE) and self.is_before(_INVERSE, _DISCRETE)


def meaning_of(
    config: BundleConfig, preparation: BundlePreparation, names: Mapping[int, str], *, is_prompted: bool = False
) -> OutputMeaning:
    """What the postprocessing makes of the network's output.

    Args:
        config: of the bundle.
        preparation: of the scan, which `Invertd` undoes.
        names: of the output channels, by index.
        is_prompted: whether indices are the values of classes that the network was asked for.

    Raises:
        InputError: a transform, one of its arguments, or their order is not known here.
    """
    chain = _chain(config, preparation, decides=_PROMPTED if is_prompted else _DISCRETE)
    if is_prompted:
        step = chain.steps[_PROMPTED]
        check_keys(step, step.take({"keys": "pred"}, without_effect=("allow_missing_keys",))["keys"], "pred")
        if len(chain.steps) > 1 + (_INVERSE in chain.steps):
            raise step.error(f"stands next to {', '.join(chain.steps)}; only {_INVERSE} is supported with it")
        return OutputMeaning(labels=names, back=_back(chain, decides=_PROMPTED))
    is_argmax = _is_argmax(chain.steps[_DISCRETE])
    softmax, sigmoid = _activation(chain.steps.get(_ACTIVATION))
    if _LABEL_MAP in chain.steps and is_argmax:
        raise chain.steps[_LABEL_MAP].error("follows argmax; it is supported only for overlapping masks")
    if is_argmax:
        found = _exclusive(chain, names, softmax=softmax, sigmoid=sigmoid)
    elif sigmoid and not softmax:
        found = _overlapping(chain, names)
    else:
        raise chain.steps[_DISCRETE].error("has a threshold without a sigmoid before it, which is not supported")
    found = replace(found, back=_back(chain))
    if found.back == "linear" and (found.channels or preparation.crops_resampled):
        raise chain.steps[_INVERSE].error("interpolates labels (nearest_interp false), which is not supported here")
    return _with_largest(chain, found)


def _chain(config: BundleConfig, preparation: BundlePreparation, *, decides: str) -> _Chain:
    """The steps, one of which decides on classes."""
    steps: dict[str, Component] = {}
    for step in config.components(_CHAIN):
        if step.name in _WITHOUT_EFFECT or _NO_NAN.fullmatch(str(step.arguments.get("func"))):
            continue
        if step.name not in _KNOWN or step.name in steps:
            why = "occurs twice" if step.name in steps else "is not supported"
            raise step.error(f"{why}; supported are, once each, {', '.join(_KNOWN)}")
        steps[step.name] = step
    chain = _Chain(config, steps, preparation)
    order = ", ".join(steps) or "empty"
    if decides not in steps:
        raise config.error(_CHAIN, f"is {order}; without {decides} it makes no classes")
    if chain.is_before(_DISCRETE, _ACTIVATION) and _ACTIVATION in steps:
        raise config.error(_CHAIN, f"is {order}; {_ACTIVATION} must come before {_DISCRETE}")
    for later in (_LABEL_MAP, _LARGEST):
        if later in steps and not chain.is_before(_DISCRETE, later):
            raise config.error(_CHAIN, f"is {order}; {later} must come after {_DISCRETE}")
    if chain.is_before(_LARGEST, _LABEL_MAP) and _LABEL_MAP in steps:
        raise config.error(_CHAIN, f"is {order}; {_LARGEST} must come after {_LABEL_MAP}")
    if _INVERSE not in steps and preparation.moves_voxels:
        raise config.error(_CHAIN, f"has no {_INVERSE}, so predictions would not be on the scan's own grid")
    return chain


def _activation(step: Component | None) -> tuple[bool, bool]:
    """Whether it is a softmax, and whether a sigmoid."""
    if step is None:
        return False, False
    taken = step.take({"keys": "pred", "softmax": False, "sigmoid": False, "other": None})
    check_keys(step, taken["keys"], "pred")
    flags = taken["softmax"], taken["sigmoid"]
    if not all(isinstance(flag, bool) for flag in flags) or all(flags) or taken["other"] is not None:
        raise step.error(
            f"has softmax, sigmoid and other {shortened([*flags, taken['other']])}; one of two is supported"
        )
    return flags


def _is_argmax(step: Component) -> bool:
    """Whether classes are those of the largest score, or masks where a score exceeds 0.5."""
    taken = step.take({"keys": "pred", "argmax": False, "threshold": None, "to_onehot": None, "rounding": None})
    check_keys(step, taken.pop("keys"), "pred")
    if taken == {"argmax": True, "threshold": None, "to_onehot": None, "rounding": None}:
        return True
    if taken == {"argmax": False, "threshold": 0.5, "to_onehot": None, "rounding": None}:
        return False
    raise step.error(f"has {shortened(taken)}; only argmax, or the threshold 0.5, is supported")


def _exclusive(chain: _Chain, names: Mapping[int, str], *, softmax: bool, sigmoid: bool) -> OutputMeaning:
    if sigmoid and chain.interpolates_activated:
        raise chain.steps[_DISCRETE].error("takes the largest of sigmoids that Invertd interpolates: not supported")
    is_of_probabilities = softmax and chain.is_before(_ACTIVATION, _INVERSE)
    return OutputMeaning(labels=names, restored="probabilities" if is_of_probabilities else "logits")


def _overlapping(chain: _Chain, names: Mapping[int, str]) -> OutputMeaning:
    """Each channel's sigmoid marks a class of its own."""
    if _LABEL_MAP not in chain.steps:
        if len(names) > 1:
            raise chain.steps[_DISCRETE].error(
                f"has threshold 0.5 for {len(names)} channels, which may overlap: a label map has one class for each "
                "voxel, and the bundle does not say which of two it shows (MONAI's for BraTS does, with Lambdad)"
            )
        labels = {0: "background", 1: names[0]}
        if not chain.interpolates_activated:
            return OutputMeaning(labels=labels, region_order=(1,))
        if chain.preparation.crops_resampled:
            raise chain.steps[_DISCRETE].error("follows probabilities of one channel that are interpolated and padded")
        # The sigmoid of a logit is the softmax of it and 0.
        return OutputMeaning(labels=labels, has_background=True, restored="probabilities")
    step = chain.steps[_LABEL_MAP]
    values = _label_values(step, len(names))
    if chain.interpolates_activated:
        raise step.error("makes labels of probabilities that Invertd interpolates, which is not supported")
    is_of_masks = chain.is_before(_DISCRETE, _INVERSE) and chain.is_before(_INVERSE, _LABEL_MAP)
    if chain.resamples and is_of_masks and not _is_nearest(chain.steps[_INVERSE]):
        raise step.error("makes labels of masks that Invertd interpolates, which is not supported")
    # A voxel of any but the strongest is in no stronger mask, so it shows only the rest of its own.
    (strongest, first), *others = values
    labels = {0: "background", first: names[strongest]}
    labels |= {value: f"rest of {names[channel]}" for channel, value in others}
    order = sorted(labels)
    # The strongest last.
    values.reverse()
    return OutputMeaning(
        labels=labels,
        channels=tuple(channel for channel, _ in values),
        region_order=tuple(order.index(value) for _, value in values),
    )


def _label_values(step: Component, num_channels: int) -> list[tuple[int, int]]:
    """Channels and their file values, the strongest first."""
    for key in step.arguments:
        if key not in ("keys", "func"):
            raise step.error(f"has the argument {excerpt(key, 80)}, which is not supported")
    check_keys(step, step.config.resolved(step.arguments.get("keys", "pred"), step.where), "pred")
    text = step.arguments.get("func")
    if not isinstance(text, str) or not text.startswith("$"):
        raise step.error(f"has the function {shortened(text)}, which is not supported")
    try:
        values = priorities(text[1:])
    except ExpressionError as error:
        raise step.error(f"has the function {shortened(text)}, which is code and is not run ({error})") from None
    channels, numbers = {channel for channel, _ in values}, {value for _, value in values}
    if max(channels) >= num_channels or len(channels) < len(values) or len(numbers) < len(values) or 0 in numbers:
        raise step.error(f"has the function {shortened(text)}, which does not give each of its channels a label")
    return values


def _is_nearest(step: Component) -> bool:
    taken = step.take(
        {"keys": "pred", "nearest_interp": True},
        without_effect=("transform", "orig_keys", "meta_keys", "orig_meta_keys", "meta_key_postfix", "to_tensor",
                        "device", "allow_missing_keys"),
    )  # fmt: skip
    check_keys(step, taken["keys"], "pred")
    return taken["nearest_interp"] not in (False, [False])


def _back(chain: _Chain, *, decides: str = _DISCRETE) -> Back:
    if _INVERSE not in chain.steps:
        return "scores"
    is_nearest = _is_nearest(chain.steps[_INVERSE])
    if chain.is_before(_INVERSE, decides):
        if is_nearest and chain.resamples:
            raise chain.steps[_INVERSE].error(
                f"has nearest_interp true before {decides}, which is not supported together with Spacingd"
            )
        return "scores"
    return "nearest" if is_nearest or not chain.resamples else "linear"


def _with_largest(chain: _Chain, found: OutputMeaning) -> OutputMeaning:
    """With the classes of which only the largest component is kept."""
    if _LARGEST not in chain.steps:
        return found
    step = chain.steps[_LARGEST]
    defaults: dict[str, Any] = {
        "keys": "pred", "applied_labels": None, "is_onehot": None, "independent": True, "connectivity": None,
        "num_components": 1,
    }  # fmt: skip
    taken = step.take(defaults)
    check_keys(step, taken["keys"], "pred")
    values = sorted(found.labels)
    kept = taken["applied_labels"]
    kept = values[1:] if kept is None else kept if isinstance(kept, list) else [kept]
    if any(isinstance(value, bool) or value not in values[1:] for value in kept):
        raise step.error(f"has the applied_labels {shortened(kept)}; labels are {shortened(values[1:])}")
    is_plain = taken["is_onehot"] in (None, False) and taken["num_components"] == 1
    if not is_plain or taken["connectivity"] not in _CONNECTIVITY or not (taken["independent"] or len(kept) == 1):
        raise step.error("keeps components in an unsupported way; leave is_onehot, independent, connectivity "
                         "and num_components out")  # fmt: skip
    indices = tuple(values.index(value) for value in kept)
    if chain.resamples and chain.is_before(_INVERSE, _LARGEST):
        return replace(found, kept_largest=indices, is_kept_on_scan=True)
    # Where nothing is interpolated, classes are brought back as exactly as scores.
    return replace(found, kept_largest=indices, back="nearest" if found.back == "scores" else found.back)
