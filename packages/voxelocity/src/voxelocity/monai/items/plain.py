"""Prepared items as data that `torch.load` takes with `weights_only=True`, and back: no pickle of objects in a cache.

A list, tuple, set, array, MetaTensor or MONAI enum is written as a tuple that begins with its kind. Tensors stay
tensors, so they are mapped from their file; arrays become tensors if torch has their type.
"""

from __future__ import annotations

from pathlib import PosixPath, PurePosixPath
from typing import Any

import monai.utils.enums
import numpy as np
import torch
from monai.data.meta_tensor import MetaTensor

_AS_THEY_ARE = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "torch.Size": torch.Size}
_PATHS = {"path": PosixPath, "pure path": PurePosixPath}
_WITH_TENSOR = "biufc"
"""Kinds of numpy types, most of which torch has."""


class NotPlainError(Exception):
    """A value in an item is not plain data."""


def to_plain(value: Any, where: str = "item") -> Any:
    """The value as plain data; tensors that are views of a larger memory are copied.

    Raises:
        NotPlainError: it, or something in it, is an object; the message names its place.
    """
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    for name, sequence in _SEQUENCES.items():
        if kind is sequence:
            return (name, [to_plain(part, f"{where}[{number}]") for number, part in enumerate(value)])
    if kind is dict:
        pairs = [(to_plain(key, where), to_plain(part, f"{where}[{key!r}]")) for key, part in value.items()]
        return ("dict", pairs)
    if kind is torch.Tensor:
        return _own_memory(value)
    if kind is MetaTensor:
        state = {name: to_plain(part, f"{where}.{name.strip('_')}") for name, part in value.__dict__.items()}
        return ("MetaTensor", _own_memory(value.as_subclass(torch.Tensor)), state)
    if kind is np.ndarray and not value.dtype.hasobject and value.dtype.names is None:
        return _of_array(value)
    if isinstance(value, np.generic) and not value.dtype.hasobject and value.dtype.names is None:
        return ("number", value.dtype.str, (), value.tobytes())
    if kind.__module__ == monai.utils.enums.__name__ and hasattr(value, "name"):
        return ("word", kind.__name__, value.name)
    for name, path in _PATHS.items():
        if kind is path:
            return (name, str(value))
    raise NotPlainError(f"{where} is a {kind.__module__}.{kind.__qualname__}, and files hold only plain data")


def from_plain(plain: Any) -> Any:
    """What `to_plain` was given, with the same types, over the memory of the tensors in `plain`."""
    if type(plain) is not tuple:
        return plain
    kind, *parts = plain
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](from_plain(part) for part in parts[0])
    if kind == "dict":
        return {from_plain(key): from_plain(part) for key, part in parts[0]}
    if kind == "MetaTensor":
        made = parts[0].as_subclass(MetaTensor)
        made.__dict__ = {name: from_plain(part) for name, part in parts[1].items()}
        return made
    if kind == "array":
        return parts[0].numpy()
    if kind in ("bytes of an array", "number"):
        made = _of_bytes(*parts)
        return made if kind == "bytes of an array" else made[()]
    if kind == "word":
        return getattr(monai.utils.enums, parts[0])[parts[1]]
    return _PATHS[kind](parts[0])


def _own_memory(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout == torch.strided and tensor.untyped_storage().nbytes() > tensor.nbytes:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return tensor


def _of_array(array: Any) -> Any:
    if array.dtype.isnative and array.dtype.kind in _WITH_TENSOR:
        is_dense = array.flags.c_contiguous or array.flags.f_contiguous
        try:
            return ("array", torch.from_numpy(array if is_dense and array.flags.writeable else array.copy()))
        except TypeError:  # a type that torch lacks, such as numpy.longdouble
            pass
    return ("bytes of an array", array.dtype.str, array.shape, array.tobytes())


def _of_bytes(dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
    # An array of empty strings has no bytes.
    return np.ndarray(shape, np.dtype(dtype), bytearray(data)) if data else np.zeros(shape, np.dtype(dtype))
