"""A trained model on disk: `model.safetensors` holds the weights, `model.json` all that is needed to use them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from pydantic import Field, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from voxelocity.core.errors import ConfigError, InputError
from voxelocity.core.whole_file import check_is_file, put_in_place
from voxelocity.data.prepare import Preparation, PrepareConfig
from voxelocity.infer.model import Model, PredictionSpec
from voxelocity.step import NetworkConfig, build_network

WEIGHTS_NAME = "model.safetensors"
SPEC_NAME = "model.json"
# What a run writes besides its model; a model copied elsewhere lacks these files.
_RUN_RECORD, _SCORES = "run.yaml", "scores.json"
_SAFE_DTYPES = {"F32": torch.float32, "I64": torch.int64}
KNOWN_VERSIONS = (1, 2, 3)
"""Every `format_version` that this release reads; it writes the last. Version 1 has no `window.swap_pairs`: networks of
that time were trained on flipped patches without swapped labels, and their windows are mirrored the same way. Version 2
has no `region_order`, no `restored` and no `keep_largest`."""


class ModelSpec(PredictionSpec):
    """What a network that we trained expects and returns, and how its weights are stored."""

    format_version: int = KNOWN_VERSIONS[-1]
    """Version of this description."""
    network: NetworkConfig
    """Which network the weights belong to."""
    prepare: PrepareConfig
    """How a scan is prepared before the network sees it."""
    num_steps: int | None = Field(default=None, ge=0)
    """Steps that the network was trained for."""
    weights_sha256: str = ""
    """Checksum of the weights file; "" in models of earlier releases."""

    @model_validator(mode="after")
    def _window_fits_the_network(self) -> Self:
        shape, divisor = self.window.shape_voxel, self.network.divisor
        if any(length % part for length, part in zip(shape, divisor, strict=True)):
            raise ValueError(f"window.shape_voxel {shape} is not a multiple of {divisor}, which network.strides need")
        if shape == divisor and self.network.norm == "instance":
            raise ValueError(
                f"window.shape_voxel {shape} leaves one voxel at the coarsest level of the network, which instance "
                "normalization cannot scale"
            )
        return self

    def preparation(self) -> Preparation:
        return Preparation(self.prepare)

    @property
    def is_scale_free(self) -> bool:
        return self.prepare.intensity.mode == "zscore"


def open_run(folder: Path, *, factory: str = "") -> Model:
    """The model of a finished run. Arguments and errors as `load_model`."""
    network, spec = load_model(folder, factory=factory)
    return Model(
        folder=folder,
        network=network,
        spec=spec,
        preparation=spec.preparation(),
        doubts=_doubts(folder, spec),
    )


def save_model(folder: Path, network: torch.nn.Module, spec: ModelSpec) -> None:
    """Writes both files, each under another name first, so that a reader never sees half of one."""
    weights = save({name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()})
    put_in_place(folder / WEIGHTS_NAME, weights)
    spec = spec.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()})
    put_in_place(folder / SPEC_NAME, (json.dumps(spec.to_plain(), indent=1) + "\n").encode())


def save_keep_largest(folder: Path, names: Sequence[str]) -> None:
    """Writes into the description of a finished model of which classes its predictions keep the largest component.

    Raises:
        InputError: as `load_model`, about the description.
    """
    spec = _read_spec(folder / SPEC_NAME).model_copy(update={"keep_largest": tuple(names)})
    put_in_place(folder / SPEC_NAME, (json.dumps(spec.to_plain(), indent=1) + "\n").encode())


def load_model(folder: Path, *, factory: str = "") -> tuple[torch.nn.Module, ModelSpec]:
    """The network in evaluation mode on the CPU, and its description.

    Args:
        folder: of a finished run.
        factory: of your own network, as in `NetworkConfig.factory`. The model's file names it too, but code runs only
            if you name it.

    Raises:
        InputError: the folder holds no finished model, a damaged one, or one in a format of another release; or the
            network is not the one that `factory` names.
        ConfigError: the factory cannot be imported.
    """
    for name in (SPEC_NAME, WEIGHTS_NAME):
        try:
            with check_is_file(folder / name).open("rb"):
                pass
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise InputError(
                f"infer: {folder} holds no {name}, so no model was finished there; "
                f"name the folder of a finished run, or finish this one: voxelocity train ... -o {folder} --resume"
            ) from None
        except OSError as error:
            raise InputError(
                f"infer: {folder / name} cannot be read ({error.strerror}); check that it is a file you may read"
            ) from None
    spec = _read_spec(folder / SPEC_NAME)
    _check_factory(spec.network.factory, factory, folder)
    _check_weights(spec, folder / WEIGHTS_NAME)
    network = _network(spec)
    _load_weights(network, folder / WEIGHTS_NAME)
    _check_bytes(spec, folder / WEIGHTS_NAME)
    return network.eval(), spec


def _doubts(folder: Path, spec: ModelSpec) -> tuple[str, ...]:
    if not (folder / _RUN_RECORD).exists() or (folder / _SCORES).exists():
        return ()
    steps = "" if spec.num_steps is None else f" It was trained for {spec.num_steps:,} steps."
    return (
        f"the run in {folder} did not finish: its network was never validated, so its quality is unknown.{steps} "
        f"To finish it: voxelocity train ... -o {folder} --resume",
    )


def _check_factory(trained: str, given: str, folder: Path) -> None:
    if trained == given:
        return
    if not trained:
        raise InputError(f"infer: the network of {folder} is one of Voxelocity's; leave --network {given} out")
    raise InputError(
        f"infer: the network of {folder} is made by the code {trained}{f', not {given}' if given else ''}; if you "
        f"trust that code, give --network {trained}"
    )


def _network(spec: ModelSpec) -> torch.nn.Module:
    return build_network(spec.network, num_channels=len(spec.channels), num_classes=len(spec.labels), seed=0)


def _read_spec(path: Path) -> ModelSpec:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"infer: {path} cannot be read ({error.strerror}); check that it is a file you may read"
        ) from None
    # Bytes that are not UTF-8, text that is not JSON, and a number with too many digits all raise ValueError.
    except (ValueError, RecursionError) as error:
        raise InputError(f"infer: {path} is damaged ({error}); train the model again") from None
    if not isinstance(values, dict):
        raise InputError(
            f"infer: {path} is damaged (it holds a JSON {type(values).__name__}, not keys and values); "
            "train the model again"
        )
    version = values.get("format_version", KNOWN_VERSIONS[0])
    # Before the keys are read, which may differ in another version.
    if version not in KNOWN_VERSIONS:
        raise InputError(
            f"infer: {path} has the format_version {version!r}, but this release reads "
            f"{', '.join(map(str, KNOWN_VERSIONS))}; install the release of voxelocity that wrote it, "
            "or train the model again"
        )
    try:
        return ModelSpec.parse(values, where=str(path))
    except ConfigError as error:
        raise InputError(f"infer: {error}; train the model again") from None


def _check_weights(spec: ModelSpec, path: Path) -> None:
    """Compares names, shapes and dtypes before memory is allocated for a network that the weights do not fit."""
    with torch.device("meta"):
        wanted = {name: (list(tensor.shape), tensor.dtype) for name, tensor in _network(spec).state_dict().items()}
    try:
        with safe_open(path, framework="pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - a file, not a mapping
            found = {name: (part.get_shape(), _SAFE_DTYPES.get(part.get_dtype())) for name, part in parts.items()}
    except (SafetensorError, OSError) as error:
        raise InputError(f"infer: {path} is damaged ({error}); train the model again") from None
    if found != wanted:
        raise InputError(f"infer: {path} holds other weights than {SPEC_NAME} describes; train the model again")


def _check_bytes(spec: ModelSpec, path: Path) -> None:
    """Compares the checksum: a weight changed to another finite number would silently change predictions."""
    if not spec.weights_sha256:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != spec.weights_sha256:
        raise InputError(
            f"infer: {path} is not the file that was written with the {SPEC_NAME} next to it (its SHA-256 is "
            f"{found[:12]}..., not {spec.weights_sha256[:12]}...); take another copy of both, or train the model again"
        )


def _load_weights(network: torch.nn.Module, path: Path) -> None:
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"infer: {path} is damaged ({error}); train the model again") from None
    wanted = network.state_dict()
    for name, tensor in wanted.items():
        if not bool(torch.isfinite(weights[name]).all()):
            raise InputError(
                f"infer: {path} holds NaN or infinity in '{name}', so it cannot predict; take another copy of it, or "
                "train the model again"
            )
        tensor.copy_(weights[name])
