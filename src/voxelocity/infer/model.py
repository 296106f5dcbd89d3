"""A trained model on disk: `model.safetensors` holds the weights, `model.json` everything needed to use them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from voxelocity.infer.window import WindowConfig

from voxelocity.core.config import Config
from voxelocity.core.errors import InputError
from voxelocity.data.prepare import PrepareConfig
from voxelocity.step import NetworkConfig, PrecisionConfig, build_network

WEIGHTS_NAME = "model.safetensors"
SPEC_NAME = "model.json"


class ModelSpec(Config):
    """What a network expects and what it answers."""

    format_version: int = 1
    """Of this description."""
    network: NetworkConfig
    """Which network the weights belong to."""
    channels: tuple[str, ...]
    """Names of the image channels, in order."""
    labels: dict[int, str]
    """File value to class name; class indices follow the sorted file values."""
    prepare: PrepareConfig
    """How a scan is prepared before the network sees it."""
    window: WindowConfig
    """How a prepared volume is covered with windows."""
    precision: PrecisionConfig
    """Number formats of the forward pass."""

    @property
    def label_values(self) -> tuple[int, ...]:
        return tuple(sorted(self.labels))

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.labels[value] for value in self.label_values)


def save_model(folder: Path, weights: Mapping[str, torch.Tensor], spec: ModelSpec) -> None:
    """Writes both files, each beside its place first, so that a reader never sees half of one."""
    temporary = folder / f".{WEIGHTS_NAME}.{os.getpid()}"
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}, temporary)
    os.replace(temporary, folder / WEIGHTS_NAME)
    temporary = folder / f".{SPEC_NAME}.{os.getpid()}"
    temporary.write_text(json.dumps(spec.to_plain(), indent=1) + "\n")
    os.replace(temporary, folder / SPEC_NAME)


def load_model(folder: Path) -> tuple[torch.nn.Module, ModelSpec]:
    """The network in evaluation mode on the CPU, and its description.

    Raises:
        InputError: the folder holds no finished model, or one that cannot be read.
    """
    for name in (SPEC_NAME, WEIGHTS_NAME):
        if not (folder / name).is_file():
            raise InputError(
                f"infer: {folder} holds no {name}, so no model was finished there; "
                f"name the folder of a finished run, or finish this one: voxelocity train ... -o {folder} --resume"
            )
    try:
        spec = ModelSpec.parse(json.loads((folder / SPEC_NAME).read_text()), where=str(folder / SPEC_NAME))
        weights = load_file(folder / WEIGHTS_NAME)
    except (json.JSONDecodeError, SafetensorError) as error:
        raise InputError(f"infer: {folder}: the model cannot be read ({error}); train it again") from None
    network = build_network(
        spec.network, num_channels=len(spec.channels), num_classes=len(spec.labels), seed=0
    )
    network.load_state_dict(weights)
    return network.eval(), spec
