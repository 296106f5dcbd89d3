"""Files that other toolkits write, read as data: JSON, and checkpoints that hold only numbers, texts and tensors."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from voxelocity.infer.models.spec import read_object
from voxelocity.infer.runtimes.contract import in_one_line
from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.plain import excerpt

_MOST_ARRAY_BYTES = 16 << 20
_DTYPES = ("b1", "f4", "f8", "i4", "i8", "u1")


class _Dtype:
    """Stands for the `np.dtype` of a pickle: NumPy's own takes flags and fields that make it follow any address."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Of it, only the order of bytes is needed."""
        if isinstance(state, tuple) and ">" in state[1:2]:
            raise pickle.UnpicklingError("numbers in the byte order of another machine")


class _Array:
    """Stands for an array of a pickle."""

    array: np.ndarray[Any, Any] | None = None

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, content = state
        self.array = _values(dtype, content).reshape(shape, order="F" if is_fortran else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _number(dtype: object, content: object) -> bool | int | float:
    """What a scalar of NumPy in a pickle becomes."""
    (value,) = _values(dtype, content).tolist()
    found: bool | int | float = value
    return found


def _values(dtype: object, content: object) -> np.ndarray[Any, Any]:
    if not isinstance(dtype, _Dtype) or dtype.name not in _DTYPES or not isinstance(content, bytes):
        raise pickle.UnpicklingError(f"numbers of {excerpt(getattr(dtype, 'name', dtype), 20)}")
    return np.frombuffer(bytearray(content), dtype=f"<{dtype.name}")


def _of_both(stand_in: object, name: str) -> list[tuple[object, str]]:
    """Earlier releases of NumPy have what makes arrays and scalars in another module."""
    return [(stand_in, f"{module}.multiarray.{name}") for module in ("numpy.core", "numpy._core")]


# The log in a checkpoint has scalars of NumPy.
_NUMBER_TYPES: list[Any] = [(_Dtype, "numpy.dtype"), *_of_both(_number, "scalar")]
_ARRAY_TYPES: list[Any] = [*_NUMBER_TYPES, (_Array, "numpy.ndarray"), *_of_both(_reconstruct, "_reconstruct")]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        InputError: the file is missing, cannot be read, or holds something else.
    """
    return read_object(path, unreadable="it belongs to the model: copy it too", damaged="copy it again")


def read_checkpoint(path: Path, *, with_arrays: bool = False) -> dict[str, Any]:
    """The dictionary that `torch.save` wrote, its tensors mapped from the file. Nothing in it is executed.

    Args:
        path: the file.
        with_arrays: whether it may hold arrays of NumPy and be of an earlier format of torch; such a file is small.

    Raises:
        InputError: the file is damaged or missing, or holds more than tensors, numbers, texts and containers of these.
    """
    try:
        if with_arrays and path.stat().st_size > _MOST_ARRAY_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes, more than an architecture takes")
        with torch.serialization.safe_globals(_ARRAY_TYPES if with_arrays else _NUMBER_TYPES):
            values = torch.load(path, map_location="cpu", mmap=not with_arrays, weights_only=True)
    except pickle.UnpicklingError as error:
        # Before it stands torch's advice to load the file as code.
        why = excerpt(str(error).rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0])
        what = f"cannot be read as plain data ({why})"
        if found := re.search(r"GLOBAL (\S+)", str(error)):
            what = f"holds {excerpt(found[1], 80)}, which may run code"
        raise InputError(
            f"infer: {path} {what}; only weights, numbers and strings are read from a model. If you trust the file, "
            "load "
            "it with torch.load(..., weights_only=False), remove the rest, and save it again with torch.save"
        ) from None
    # A damaged pickle may do anything that its few orders can do to objects of the wrong kind.
    except Exception as error:
        raise InputError(f"infer: {path} is damaged ({in_one_line(error)}); copy it again") from None
    if not isinstance(values, dict):
        raise InputError(f"infer: {path} holds a {type(values).__name__}, not a dictionary of weights")
    return {key: value.array if isinstance(value, _Array) else value for key, value in values.items()}


def network_with(
    build: Callable[[], torch.nn.Module],
    weights: Mapping[str, torch.Tensor],
    path: Path,
    *,
    hint: str,
    batch_bcxyz: tuple[int, ...] = (),
) -> torch.nn.Module:
    """The network with exactly these weights, in evaluation mode.

    It is first built without memory, so that a description of a network that is larger than its weights, or that cannot
    compute, is refused before it takes any.

    Args:
        build: makes the network, on torch's current device.
        weights: by name.
        path: of their file, for messages.
        hint: what to do where they are others.
        batch_bcxyz: shape of a batch that the network must be able to take; not tried if empty.

    Raises:
        InputError: names, shapes or kinds are others, a weight is not finite, or the network cannot take the batch.
    """
    try:
        with torch.device("meta"):
            blank: torch.nn.Module | None = build()
    # Some networks of MONAI read values while they are built, which tensors without memory do not have.
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error):
            raise
        blank = None
    if blank is not None:
        _check_weights(blank, weights, path, hint=hint)
        if batch_bcxyz:
            _check_batch(blank.eval(), batch_bcxyz, path)
    network = build()
    _check_weights(network, weights, path, hint=hint)
    for name, tensor in weights.items():
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"infer: {path} holds NaN or infinity in '{name}'; copy it again")
    network.load_state_dict(dict(weights))
    return network.eval()


def _check_weights(network: torch.nn.Module, weights: Mapping[str, torch.Tensor], path: Path, *, hint: str) -> None:
    wanted, found = network.state_dict(), dict(weights)
    shapes = [{(name, _shape_of(value)) for name, value in state.items()} for state in (wanted, found)]
    if different := sorted((name for name, _ in shapes[0] ^ shapes[1]), key=str):
        raise InputError(
            f"infer: {path} holds other weights than the network that its folder describes (the first is "
            f"{different[0]!s:.80}); {hint}"
        )
    for name, tensor in found.items():
        # Of quantized, sparse or complex values, a copy into the network would fail or mean something else.
        is_float = tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not is_plain or not (is_float if wanted[name].is_floating_point() else tensor.dtype == wanted[name].dtype):
            raise InputError(
                f"infer: {path} holds '{name}' as {str(tensor.dtype).removeprefix('torch.')} ({tensor.layout}, "
                f"{tensor.device.type}), where the network has "
                f"{str(wanted[name].dtype).removeprefix('torch.')}; save the weights again in float32"
            )


def _check_batch(network: torch.nn.Module, shape_bcxyz: tuple[int, ...], path: Path) -> None:
    """Computes with shapes alone."""
    try:
        with torch.no_grad():
            network(torch.empty(shape_bcxyz, device="meta"))
    except NotImplementedError:
        # An operation that needs values.
        return
    except ImportError as error:
        raise InputError(
            f"infer: the network of {path.parent.parent} needs a package that is not installed ({in_one_line(error)}); "
            "install it with pip"
        ) from None
    # Whatever its layers raise for sizes that do not fit.
    except Exception as error:
        if "meta" in str(error):
            return
        size = " x ".join(map(str, shape_bcxyz[2:]))
        raise InputError(
            f"infer: the network of {path.parent.parent} cannot take its own windows of {size} "
            f"({in_one_line(error)}); copy it again"
        ) from None


def _shape_of(value: object) -> object:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
