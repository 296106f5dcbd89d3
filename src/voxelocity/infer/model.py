"""A trained model on disk: `model.safetensors` holds the weights, `model.json` everything needed to use them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from voxelocity.core.config import Config
from voxelocity.core.errors import InputError
from voxelocity.data.prepare import PrepareConfig
from voxelocity.infer.window import WindowConfig
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


def save_model(folder: Path, network: torch.nn.Module, spec: ModelSpec) -> None:
    """Writes both files, each beside its place first, so that a reader never sees half of one."""
    temporary = folder / f".{WEIGHTS_NAME}.{os.getpid()}"
    save_file({name: tensor.cpu().contiguous() for name, tensor in _once(network).items()}, temporary)
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
    except json.JSONDecodeError as error:
        raise InputError(f"infer: {folder / SPEC_NAME} is damaged ({error}); train the model again") from None
    network = build_network(spec.network, num_channels=len(spec.channels), num_classes=len(spec.labels), seed=0)
    _load_weights(network, folder / WEIGHTS_NAME)
    return network.eval(), spec


def _once(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The network's tensors, each under one name: MONAI's DynUNet registers every block under two."""
    named: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in network.state_dict().items():
        named.setdefault(tensor.data_ptr(), (name, tensor.detach()))
    return dict(named.values())


def _load_weights(network: torch.nn.Module, path: Path) -> None:
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"infer: {path} is damaged ({error}); train the model again") from None
    wanted = _once(network)
    if weights.keys() != wanted.keys() or any(weights[name].shape != wanted[name].shape for name in wanted):
        raise InputError(f"infer: {path} holds other weights than {SPEC_NAME} beside it says; train the model again")
    for name, tensor in wanted.items():
        tensor.copy_(weights[name])
