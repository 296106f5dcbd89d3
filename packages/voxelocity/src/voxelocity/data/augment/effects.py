"""Effects of the user's own, applied to a batch after the built-in ones.

An effect is one class in one file: it draws its parameters and applies them. The built-in effects are not of this kind:
they are fused into few passes over the voxels (`built_in`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from voxelocity.core.batch import Draw
from voxelocity.core.config import find_factory
from voxelocity.core.rng import generator
from voxelocity.data.augment.config import AugmentConfig, EffectConfig
from voxelocity_observe.core.errors import ConfigError

_KEY = "data.augment.effects"
BUILT_IN_EFFECTS = frozenset({"voxelocity.data.augment.color:ColorAndStain"})
"""Factories of our own effects: a file that names one of them names no code of someone else."""


@runtime_checkable
class Effect(Protocol):
    """A random change of a patch. One instance serves several threads at once, so it keeps no state."""

    def draw(self, rng: np.random.Generator, num_channels: int) -> Any:
        """The parameters for one patch, drawn only from `rng`, so that a seed gives the same patch in every run."""
        ...

    def apply(self, image: npt.NDArray[np.float32], label: npt.NDArray[np.uint8], drawn: Any) -> None:
        """Changes image (c, x, y, z) and label (x, y, z) in place, by what was drawn. Both are in C order."""
        ...


class Effects:
    """The effects of a configuration, ready to be applied.

    Args:
        config: whose `effects` are meant; none if it is not enabled.

    Raises:
        ConfigError: an effect cannot be imported or made, or lacks one of its methods.
    """

    def __init__(self, config: AugmentConfig) -> None:
        chosen = config.effects if config.enabled else ()
        self._config = config
        self._effects = [_make_effect(effect) for effect in chosen]

    @property
    def run_on_device(self) -> bool:
        """Whether all of them can change a batch that lies on a GPU: they have `apply_on_device`."""
        return all(hasattr(effect, "apply_on_device") for effect in self._effects)

    def apply(self, draws: Sequence[Draw], image: torch.Tensor, label: torch.Tensor, *, seed: int) -> None:
        """Changes a batch in place. A sample depends only on (seed, epoch, case, draw) and the configuration.

        Args:
            draws: one for each sample.
            image: (b, c, x, y, z) float32 in C order.
            label: (b, x, y, z) uint8 in C order, on the same device; int32 of more than 256 classes.
            seed: of the run.
        """
        if not self._effects:
            return
        for row, draw in enumerate(draws):
            configs = self._config.at(draw.epoch).effects
            for number, (effect, config) in enumerate(zip(self._effects, configs, strict=True)):
                stage = f"effect {number}"
                rng = generator(seed, stage=stage, epoch=draw.epoch, case=draw.case, draw=draw.draw)
                if rng.random() >= config.probability:
                    continue
                drawn = effect.draw(rng, image.shape[1])
                if image.is_cuda:
                    effect.apply_on_device(image[row], label[row], drawn)  # type: ignore[attr-defined]
                else:
                    effect.apply(image[row].numpy(), label[row].numpy(), drawn)


def _make_effect(config: EffectConfig) -> Effect:
    effect = find_factory(config.factory, key=f"{_KEY}.factory")
    try:
        made = effect(**config.settings)
    except TypeError as error:
        raise ConfigError(
            f"data: {_KEY}: {config.factory} cannot be made with settings {dict(config.settings)} ({error})"
        ) from None
    if not isinstance(made, Effect):
        raise ConfigError(
            f"data: {_KEY}: {config.factory} made a {type(made).__name__} without the methods draw(rng, num_channels) "
            "and apply(image, label, drawn); see docs/augmentation.md"
        )
    return made
