"""A trained model on disk: `model.safetensors` holds the weights, `model.json` everything needed to use them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Self

import torch
from pydantic import Field, model_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from voxelocity.core.cases import MAX_LABEL_VALUE
from voxelocity.core.config import Config
from voxelocity.core.errors import ConfigError, InputError, ScanError
from voxelocity.core.laterality import swapped_classes
from voxelocity.data.prepare import PrepareConfig
from voxelocity.infer.window import WindowConfig
from voxelocity.step import NetworkConfig, PrecisionConfig, build_network

WEIGHTS_NAME = "model.safetensors"
SPEC_NAME = "model.json"
KNOWN_VERSIONS = (1, 2)
"""Every `format_version` that this release reads; it writes the last. Version 1 has no `window.swap_pairs`: networks of
that time saw flipped patches with the labels unswapped, and are mirrored so."""
_MAX_CLASSES = 256


class ModelSpec(Config):
    """What a network expects and what it answers."""

    format_version: int = KNOWN_VERSIONS[-1]
    """Of this description."""
    network: NetworkConfig
    """Which network the weights belong to."""
    channels: tuple[str, ...] = Field(min_length=1)
    """Names of the image channels, in order."""
    labels: dict[Annotated[int, Field(ge=0, le=MAX_LABEL_VALUE)], str] = Field(min_length=1, max_length=_MAX_CLASSES)
    """File value to class name; class indices follow the sorted file values."""
    prepare: PrepareConfig
    """How a scan is prepared before the network sees it."""
    window: WindowConfig
    """How a prepared volume is covered with windows."""
    precision: PrecisionConfig
    """Number formats of the forward pass."""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        try:
            swapped_classes(self.class_names, self.window.swap_pairs)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def label_values(self) -> tuple[int, ...]:
        return tuple(sorted(self.labels))

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.labels[value] for value in self.label_values)

    def check_channels(self, num_channels: int, *, where: str) -> None:
        """Passes silently where a scan has as many channels as the network was trained on.

        Args:
            num_channels: of the scan.
            where: start of the error text; names the case.

        Raises:
            ScanError: it has more or fewer.
        """
        wanted = len(self.channels)
        if num_channels == wanted:
            return
        cure = (
            "give that channel alone, as a 3-D file"
            if wanted == 1
            else "give these in this order, in one 4-D file or as the files CASE_0000.nii.gz to "
            f"CASE_{wanted - 1:04d}.nii.gz"
        )
        raise ScanError(
            f"{where} has {num_channels} channel{'s' if num_channels != 1 else ''}, but the network was trained on "
            f"{wanted} ({', '.join(self.channels)}); {cure}"
        )


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
        InputError: the folder holds no finished model, one that is damaged, or one in a format of another release.
    """
    for name in (SPEC_NAME, WEIGHTS_NAME):
        if not (folder / name).is_file():
            raise InputError(
                f"infer: {folder} holds no {name}, so no model was finished there; "
                f"name the folder of a finished run, or finish this one: voxelocity train ... -o {folder} --resume"
            )
    spec = _read_spec(folder / SPEC_NAME)
    network = build_network(spec.network, num_channels=len(spec.channels), num_classes=len(spec.labels), seed=0)
    _load_weights(network, folder / WEIGHTS_NAME)
    return network.eval(), spec


def _read_spec(path: Path) -> ModelSpec:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"infer: {path} cannot be read ({error.strerror}); check that it is a file you may read"
        ) from None
    # Bytes that are no UTF-8, text that is no JSON, and a number of too many digits are all a ValueError.
    except (ValueError, RecursionError) as error:
        raise InputError(f"infer: {path} is damaged ({error}); train the model again") from None
    if not isinstance(values, dict):
        raise InputError(
            f"infer: {path} is damaged (it holds a JSON {type(values).__name__}, not keys and values); "
            "train the model again"
        )
    version = values.get("format_version", KNOWN_VERSIONS[0])
    # Before the keys are read, which may be others in another version.
    if version not in KNOWN_VERSIONS:
        raise InputError(
            f"infer: {path} has the format_version {version!r}, but this release knows "
            f"{', '.join(map(str, KNOWN_VERSIONS))}; install the release of voxelocity that wrote it, "
            "or train the model again"
        )
    try:
        return ModelSpec.parse(values, where=str(path))
    except ConfigError as error:
        raise InputError(f"infer: {error}; train the model again") from None


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
