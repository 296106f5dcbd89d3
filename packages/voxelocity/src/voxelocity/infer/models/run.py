"""A trained model on disk: `model.safetensors` holds the weights, `model.json` all that is needed to use them."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from voxelocity.infer.model import Model
from voxelocity.infer.models.spec import SPEC_NAME, ModelSpec, read_spec, too_short_text, write_spec
from voxelocity.step import build_network, keep_float32
from voxelocity_observe.core.errors import InputError, missing_path
from voxelocity_observe.core.plain import excerpt
from voxelocity_observe.core.whole_file import check_is_file, put_in_place

WEIGHTS_NAME = "model.safetensors"
# What a run writes besides its model; a model copied elsewhere lacks these files.
_RUN_RECORD, _SCORES = "run.yaml", "scores.json"
_SAFE_DTYPES = {"F32": torch.float32, "I64": torch.int64}


def open_run(folder: Path, *, factory: str = "") -> Model:
    """The model of a finished run. Arguments and errors as `load_model`."""
    network, spec = load_model(folder, factory=factory)
    return Model(
        folder=folder,
        network=network,
        spec=spec,
        preparation=spec.preparation(),
        doubts=_doubts(folder, spec),
        unlearned=spec.unlearned,
    )


def save_model(folder: Path, network: torch.nn.Module, spec: ModelSpec) -> None:
    """Writes both files, each under another name first, so that a reader never sees half of one."""
    weights = save({name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()})
    put_in_place(folder / WEIGHTS_NAME, weights)
    write_spec(folder, spec.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()}))


def save_keep_largest(folder: Path, names: Sequence[str]) -> None:
    """Writes into the description of a finished model of which classes its predictions keep the largest component.

    Raises:
        InputError: as `load_model`, about the description.
    """
    write_spec(folder, read_spec(folder / SPEC_NAME).model_copy(update={"keep_largest": tuple(names)}))


def load_model(folder: Path, *, factory: str = "", option: str = "--network ") -> tuple[torch.nn.Module, ModelSpec]:
    """The network in evaluation mode on the CPU, and its description.

    Args:
        folder: of a finished run.
        factory: of your own network, as in `NetworkConfig.factory`. The model's file names it too, but code runs only
            if you name it.
        option: by which the command at hand names it, for messages.

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
            if not folder.exists():
                raise InputError(f"infer: {missing_path(folder)}; name the folder of a finished run") from None
            resumed = f", or finish this one: voxelocity train --resume {shlex.quote(str(folder))}"
            raise InputError(
                f"infer: {folder} holds no {name}, so no model was finished there; name the folder of a finished run"
                f"{resumed if (folder / _RUN_RECORD).exists() else ''}"
            ) from None
        except OSError as error:
            raise InputError(
                f"infer: {folder / name} cannot be read ({error.strerror}); check that it is a file you may read"
            ) from None
    spec = read_spec(folder / SPEC_NAME)
    _check_factory(spec.network.factory, factory, folder, option)
    network = _network_of(spec, folder / WEIGHTS_NAME)
    _check_bytes(spec, folder / WEIGHTS_NAME)
    return network, spec


def _doubts(folder: Path, spec: ModelSpec) -> tuple[str, ...]:
    if spec.unlearned:
        return (too_short_text(folder, spec.unlearned),)
    if not (folder / _RUN_RECORD).exists() or (folder / _SCORES).exists():
        return ()
    steps = "" if spec.num_steps is None else f" It was trained for {spec.num_steps:,} steps."
    return (
        f"the run in {folder} did not finish: its network was never validated, so its quality is unknown.{steps} "
        f"To finish it: voxelocity train --resume {shlex.quote(str(folder))}",
    )


def _check_factory(trained: str, given: str, folder: Path, option: str) -> None:
    if trained == given:
        return
    if not trained:
        raise InputError(f"infer: the network of {folder} is one of Voxelocity's; leave {option}{given} out")
    raise InputError(
        f"infer: the network of {folder} is made by the code {trained}{f', not {given}' if given else ''}; if you "
        f"trust that code, give {option}{trained}"
    )


def _build(spec: ModelSpec) -> torch.nn.Module:
    return build_network(spec.network, num_channels=len(spec.channels), num_classes=spec.num_outputs, seed=0)


def _network_of(spec: ModelSpec, path: Path) -> torch.nn.Module:
    """The network with the weights of a file, after names, shapes and dtypes are known to fit: it may be large."""
    with torch.device("meta"):
        wanted = {name: (list(tensor.shape), tensor.dtype) for name, tensor in _build(spec).state_dict().items()}
    try:
        with safe_open(path, framework="pt") as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - a file, not a mapping
            found = {name: (part.get_shape(), _SAFE_DTYPES.get(part.get_dtype())) for name, part in parts.items()}
            if found != wanted:
                raise InputError(f"infer: {path} holds other weights than {SPEC_NAME} describes; train the model again")
            weights = {name: file.get_tensor(name) for name in parts}
    except (SafetensorError, OSError) as error:
        raise InputError(f"infer: {path} is damaged ({excerpt(error)}); train the model again") from None
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"infer: {path} holds NaN or infinity in '{name}', so it cannot predict; copy it again, or "
                "train the model again"
            )
    network = _build(spec)
    network.load_state_dict(weights)
    return keep_float32(network, spec.precision.float32_layers).eval()


def _check_bytes(spec: ModelSpec, path: Path) -> None:
    """Compares the checksum: a weight changed to another finite number would silently change predictions."""
    if not spec.weights_sha256:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != spec.weights_sha256:
        raise InputError(
            f"infer: {path} is not the file that was written with the {SPEC_NAME} next to it (its SHA-256 is "
            f"{found[:12]}..., not {spec.weights_sha256[:12]}...); copy both again, or train the model again"
        )
