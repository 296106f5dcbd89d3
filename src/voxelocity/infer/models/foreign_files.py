"""Files that other toolkits write, read as data: JSON, and checkpoints that hold only numbers, texts and tensors."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxelocity.core.errors import InputError
from voxelocity.core.whole_file import check_is_file
from voxelocity.infer.models.spec import read_object

# The log in a checkpoint has numbers of these types. Earlier releases of numpy have its scalars in another module.
_SCALAR = np.float64(0).__reduce__()[0]
_NUMPY_TYPES: list[Any] = [
    np.dtype,
    *(type(np.dtype(name)) for name in ("float64", "float32", "int64", "int32", "bool")),
    *((_SCALAR, f"{module}.multiarray.scalar") for module in ("numpy.core", "numpy._core")),
]


_COPY = "it belongs to the model: copy it too"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: the file is missing, cannot be read, or holds something else.
    """
    try:
        check_is_file(path)
    except OSError as error:
        raise InputError(f"infer: {path} cannot be read ({error.strerror}); {_COPY}") from None
    return read_object(path, unreadable=_COPY, damaged="copy it again")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The dictionary that `torch.save` wrote, its tensors mapped from the file. Nothing in it is executed.

    Raises:
        InputError: the file is damaged or missing, or holds more than tensors, numbers, texts and containers of these.
    """
    try:
        with torch.serialization.safe_globals(_NUMPY_TYPES):
            values = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"holds {found[1]}, which may run code" if found else f"cannot be read as plain data ({error})"
        raise InputError(
            f"infer: {path} {what}; only weights, numbers and texts are read from a model. If you trust the file, load "
            "it with torch.load(..., weights_only=False), remove the rest, and save it again with torch.save"
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise InputError(f"infer: {path} is damaged ({error}); copy it again") from None
    if not isinstance(values, dict):
        raise InputError(f"infer: {path} holds a {type(values).__name__}, not a dictionary of weights")
    return values


def load_weights(network: torch.nn.Module, weights: Mapping[str, torch.Tensor], path: Path, *, hint: str) -> None:
    """Copies weights into a network that has exactly these.

    Args:
        network: to be filled.
        weights: by name.
        path: of their file, for messages.
        hint: what to do where they are others.

    Raises:
        InputError: names or shapes are others, or a weight is not finite.
    """
    both = [{name: _shape_of(value) for name, value in each.items()} for each in (network.state_dict(), weights)]
    if different := sorted(dict(both[0].items() ^ both[1].items())):
        raise InputError(
            f"infer: {path} holds other weights than the network that its folder describes (the first is "
            f"{different[0]}); {hint}"
        )
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"infer: {path} holds NaN or infinity in '{name}'; copy it again")
    network.load_state_dict(dict(weights))


def _shape_of(value: object) -> object:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
