"""The classifier: MONAI's ResNet-18 in two dimensions, which answers for every square of a region; and its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from voxelocity.core.learning import UNLEARNED
from voxelocity.infer import SPEC_NAME
from voxelocity_lab.recipes.call import Call
from voxelocity_lab.recipes.division import Division
from voxelocity_lab.recipes.pathology.handmade import HandMade
from voxelocity_lab.recipes.pathology.settings import PathologyConfig
from voxelocity_lab.recipes.trained import read_trained, write_trained
from voxelocity_observe.core.errors import InputError

# Since 2, with what was trained on.
_FORMAT = 2
_HAND_MADE = "hand_made"


class PatchNet(torch.nn.Module):
    """Whether squares of a patch, or of a larger region, hold tumor, as logits.

    Memory is in channels-last order throughout, which convolutions on CPUs and tensor cores compute faster.

    Args:
        width: its channels as a share of ResNet-18's.
    """

    def __init__(self, width: float) -> None:
        from monai.networks.nets import resnet18

        super().__init__()
        # Its strides multiply to the side of a square.
        self.body = resnet18(spatial_dims=2, n_input_channels=3, num_classes=1, conv1_t_stride=2, widen_factor=width)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Logits (b, rows, columns) of the squares of (b, 3, y, x), whose intensities go from 0 to 1."""
        logits: torch.Tensor = self.body.fc(self._features(image).movedim(1, 3))[..., 0]
        return logits

    def patches(self, image: torch.Tensor) -> torch.Tensor:
        """Logits (b,) of patches: of the square in the middle of each."""
        logits: torch.Tensor = self(image)
        return logits[:, logits.shape[1] // 2, logits.shape[2] // 2]

    def _features(self, image: torch.Tensor) -> torch.Tensor:
        body = self.body
        image = (2.0 * image - 1.0).contiguous(memory_format=torch.channels_last)
        image = body.maxpool(body.act(body.bn1(body.conv1(image))))
        features: torch.Tensor = body.layer4(body.layer3(body.layer2(body.layer1(image))))
        return features


@dataclass(frozen=True, kw_only=True)
class TrainedPatches:
    """A trained model.

    Attributes:
        network: with the averaged weights, in evaluation mode on the CPU.
        config: it was trained with.
        fold: that was held out; None for none.
        seed: of the training.
        division: the pieces that it was trained on, and those that were held out.
        unlearned: why that was too short to be scored; "" where it was not.
        hand_made: the regression of hand-made features of the same pieces; None in models of earlier versions.
        micrometers: the least and the largest width of a pixel that was trained on; empty where none is known.
    """

    network: PatchNet
    config: PathologyConfig
    fold: int | None
    seed: int
    division: Division
    unlearned: str = ""
    hand_made: HandMade | None = None
    micrometers: tuple[float, ...] = ()

    def before_training(self) -> PatchNet:
        """The network as it was before its first step, in evaluation mode on the CPU."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return PatchNet(self.config.network.width).eval()

    def save(self, folder: Path) -> None:
        """Writes it into a run's folder."""
        description = {
            "fold": self.fold, "seed": self.seed, "config": self.config.to_plain(),
            "division": self.division.to_plain(), UNLEARNED: self.unlearned,
            _HAND_MADE: None if self.hand_made is None else self.hand_made.to_plain(),
            "micrometers": list(self.micrometers),
        }  # fmt: skip
        write_trained(folder, "pathology", _FORMAT, self.network.state_dict(), description)


def find_models(out: Path) -> list[Path]:
    """The folders of finished trainings.

    Raises:
        InputError: there are none.
    """
    folders = sorted(path.parent for path in out.glob(f"*/{SPEC_NAME}"))
    if not folders:
        raise InputError(f"pathology: {out} holds no finished training; train first")
    return folders


def load_patches(folder: Path) -> TrainedPatches:
    """The model of a finished run.

    Raises:
        InputError: the folder holds none, a damaged one, or one of another recipe or version.
    """
    found, weights = read_trained(folder, "pathology", _FORMAT)
    config = PathologyConfig.parse(found["config"], where=str(folder / SPEC_NAME))
    network = PatchNet(config.network.width)
    network.load_state_dict(weights)
    return TrainedPatches(
        network=network.eval(),
        config=config,
        fold=found["fold"],
        seed=int(found["seed"]),
        division=Division.from_plain(found["division"]),
        unlearned=str(found.get(UNLEARNED, "")),
        hand_made=HandMade.from_plain(found[_HAND_MADE]) if found.get(_HAND_MADE) else None,
        micrometers=tuple(found.get("micrometers", ())),
    )


def change_heat(call: Call, trained: TrainedPatches) -> TrainedPatches:
    """The model with the settings by which slides are predicted as the call has them.

    Raises:
        ConfigError: a value cannot be used, or the call sets what the training decided.
    """
    # Of a run whose folds were trained by several commands, models name other folds.
    keys = ("heat", "tissue", "cache_bytes", "folds")
    return replace(trained, config=call.change_settings(trained.config, keys, where="pathology"))
