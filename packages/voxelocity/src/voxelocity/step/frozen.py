"""The way down of a network held fixed while the rest begins to learn: the features that it has are worth keeping."""

from __future__ import annotations

import re

from voxelocity.parallel import Sharding
from voxelocity_observe.core.errors import ConfigError

# Our networks, nnU-Net's two and MONAI's: DynUNet, nnU-Net, SegResNet, SwinUNETR, BasicUNet, VNet, UNet.
_WAY_DOWN = re.compile(
    r"^(stem|input_block|downsamples|bottleneck|encoder\d*|convInit|down_layers|swinViT|conv_0|down_\d|in_tr|down_tr\d+"
    r"|model\.(1\.submodule\.)*0)\."
)


class Frozen:
    """The weights of the way down, which steps leave unchanged while `is_on`.

    With one process, their gradients are not computed either. With several they are: DDP finds out once which weights
    are trained.

    Args:
        sharding: of the network that is trained.
        skips_gradients: whether they need not be computed.
    """

    def __init__(self, sharding: Sharding, *, skips_gradients: bool) -> None:
        whole = sharding.own if sharding.blank is None else sharding.blank
        named = zip(whole.named_parameters(), sharding.trained(), strict=True)
        # What a network of the user's own never trains is left to it.
        trained = [(name, part) for (name, _), part in named if part is not None and part.requires_grad]
        self._weights = [part for name, part in trained if _WAY_DOWN.match(name)]
        self._is_known = any(_WAY_DOWN.match(name) for name, _ in whole.named_parameters())
        self._skips_gradients = skips_gradients
        self.is_on = False

    def turn(self, is_on: bool) -> bool:
        """Holds the weights or lets them learn; returns whether that is a change.

        Raises:
            ConfigError: nothing is known of the network's way down.
        """
        if is_on == self.is_on:
            return False
        if not self._is_known:
            raise ConfigError(
                "train: schedule.frozen_share freezes the encoder, and that of this network is unknown; set it to 0, "
                "or choose a network by name"
            )
        self.is_on = is_on
        if self._skips_gradients:
            for weight in self._weights:
                weight.requires_grad_(not is_on)
        return True

    def drop_gradients(self) -> None:
        """Drops those of the weights that are held: an optimizer leaves weights without gradients unchanged."""
        for weight in self._weights:
            weight.grad = None
