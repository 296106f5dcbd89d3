"""What the window engine computes with: torch tensors, or NumPy arrays on a CPU for a runtime that needs no torch.

Indexing and arithmetic are the same for both and need nothing from here; this module holds what is not. All arrays of
one prediction are of one kind. Importing it imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from voxelocity.core.cases import MAX_BYTE_CLASSES, index_dtype
from voxelocity.step.fused import has_triton, is_fused
from voxelocity_observe.core.device import HOST, Device, Host, as_current

# Two of these are page-locked while values are fetched.
_PIECE_BYTES = 16 << 20
# Types of devices on which Triton compiles our kernels.
_KERNEL_DEVICES = frozenset(("cuda",))

Values = Any
"""A torch tensor or a NumPy array."""


def of_numpy(array: npt.NDArray[Any], device: Device) -> Values:
    """The array, or a tensor in main memory that shares it."""
    if isinstance(device, Host):
        return array
    import torch

    return torch.from_numpy(array)


def to_numpy(values: Values) -> npt.NDArray[Any]:
    """An array in main memory; it shares the memory of values that are there."""
    array: npt.NDArray[Any] = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    return array


def fetch(values: Values) -> npt.NDArray[Any]:
    """As `to_numpy`; from a CUDA device by way of page-locked memory, of which one piece is filled while one is read.

    Never shares memory that is page-locked, of which a system has little.
    """
    if isinstance(values, np.ndarray) or values.device.type != "cuda":
        return to_numpy(values)
    import torch

    line = values.contiguous().view(-1)
    found = np.empty(tuple(values.shape), to_numpy(line[:0]).dtype)
    out = torch.from_numpy(found.reshape(-1))
    num = max(1, min(_PIECE_BYTES // line.element_size(), len(line)))
    with as_current(values.device):
        pieces = [torch.empty(num, dtype=line.dtype, pin_memory=True) for _ in range(2)]
        filled = [torch.cuda.Event() for _ in pieces]  # type: ignore[no-untyped-call]
        starts = range(0, len(line), num)
        for number in range(len(starts) + 1):
            if number < len(starts):
                part = line[starts[number] : starts[number] + num]
                pieces[number % 2][: len(part)].copy_(part, non_blocking=True)
                filled[number % 2].record()
            if number > 0:
                filled[(number - 1) % 2].synchronize()
                target = out[starts[number - 1] : starts[number - 1] + num]
                target.copy_(pieces[(number - 1) % 2][: len(target)])
    return found


def device_of(values: Values) -> Device:
    """Where values are."""
    device: Device = HOST if isinstance(values, np.ndarray) else values.device
    return device


def main_memory_of(device: Device) -> Device:
    """Where arrays of the same kind are in main memory."""
    if isinstance(device, Host):
        return device
    import torch

    return torch.device("cpu")


def moved(values: Values, device: Device) -> Values:
    """The values on a device: unchanged if they are there, else a copy, for which the host does not wait."""
    return values if isinstance(values, np.ndarray) else values.to(device, non_blocking=True)


def as_float32(values: Values) -> Values:
    """The values as float32: unchanged if they are, else a copy."""
    return values.astype(np.float32, copy=False) if isinstance(values, np.ndarray) else values.float()


def copied(values: Values) -> Values:
    """A copy on the same device, in the same type."""
    return values.copy() if isinstance(values, np.ndarray) else values.clone()


def float32_copy(values: Values) -> Values:
    """A copy on the same device, as float32; voxels of a line are neighbors where kernels take it."""
    if isinstance(values, np.ndarray):
        return values.astype(np.float32)
    import torch

    order = torch.contiguous_format if has_kernels(values) else torch.preserve_format
    return values.to(torch.float32, copy=True, memory_format=order)


def zeros_like(values: Values, shape: Sequence[int]) -> Values:
    """Zeros of a shape, in the type of the values, on their device."""
    return np.zeros(shape, values.dtype) if isinstance(values, np.ndarray) else values.new_zeros(shape)


def zeros(shape: Sequence[int], device: Device) -> Values:
    """Zeros on a device, float32."""
    if isinstance(device, Host):
        return np.zeros(shape, np.float32)
    import torch

    return torch.zeros(shape, dtype=torch.float32, device=device)


def class_zeros(shape: Sequence[int], device: Device, num_classes: int) -> Values:
    """Zeros on a device for class indices: uint8, for more classes uint16, or int32 in tensors."""
    if isinstance(device, Host):
        return np.zeros(shape, index_dtype(num_classes))
    import torch

    return torch.zeros(shape, dtype=torch.uint8 if num_classes <= MAX_BYTE_CLASSES else torch.int32, device=device)


def stack(values: Sequence[Values]) -> Values:
    """One array of several of one shape, along a new first axis."""
    if isinstance(values[0], np.ndarray):
        return np.stack(values)
    import torch

    return torch.stack(tuple(values))


def flip(values: Values, axes: Sequence[int]) -> Values:
    """The values mirrored along these axes: a view of an array, a copy of a tensor."""
    return np.flip(values, tuple(axes)) if isinstance(values, np.ndarray) else values.flip(tuple(axes))


def has_kernels(values: Values, *others: Values) -> bool:
    """Whether `device_arrays` computes with these: all on one CUDA device, with Triton, and not switched off."""
    if isinstance(values, np.ndarray) or not is_fused("window"):
        return False
    kind = values.device.type
    if kind == "meta":
        from voxelocity.core.kernels import only_records

        if not only_records():
            return False
    elif kind not in _KERNEL_DEVICES:
        return False
    return all(other.device == values.device for other in others) and has_triton()


def add_weighted(total_kxyz: Values, values_kxyz: Values, weights_xyz: Values) -> None:
    """Adds values times weights to a float32 total, which may be on another device than the values."""
    if has_kernels(total_kxyz, values_kxyz, weights_xyz):
        from voxelocity.infer import device_arrays

        device_arrays.add(total_kxyz, values_kxyz, weights_xyz=weights_xyz)
        return
    if isinstance(total_kxyz, np.ndarray):
        # One class at a time, so that the product stays in the caches.
        product = np.empty(weights_xyz.shape, np.float32)
        for sums, values in zip(total_kxyz, values_kxyz, strict=True):
            sums += np.multiply(values, weights_xyz, out=product)
        return
    if values_kxyz.dtype == total_kxyz.dtype and values_kxyz.device == total_kxyz.device:
        total_kxyz.addcmul_(values_kxyz, weights_xyz)
        return
    for sums, values in zip(total_kxyz, values_kxyz, strict=True):
        sums.addcmul_(values.to(sums.device, sums.dtype), weights_xyz)


def add_rounded(total_kxyz: Values, values_kxyz: Values, weights_xyz: Values) -> None:
    """As `add_weighted`, each sum rounded to float16; products are of the type of the values."""
    for sums, values in zip(total_kxyz, values_kxyz, strict=True):
        if isinstance(sums, np.ndarray):
            sums += values * weights_xyz.astype(values.dtype)
        else:
            sums += (values * weights_xyz.to(values.dtype)).to(sums.device)
        round_to_float16(sums)


def round_to_float16(values: Values) -> None:
    """Changes float32 values to the nearest of float16."""
    if isinstance(values, np.ndarray):
        values[...] = values.astype(np.float16)
    else:
        values.copy_(values.half())


def is_finite(values_kxyz: Values) -> Values:
    """Whether all values are finite, a scalar on their device."""
    if isinstance(values_kxyz, np.ndarray):
        # A sum may overflow although all values are finite.
        return bool(np.isfinite(values_kxyz.sum())) or bool(np.isfinite(values_kxyz).all())
    if has_kernels(values_kxyz):
        from voxelocity.infer import device_arrays

        return device_arrays.is_finite(values_kxyz)
    import torch

    if values_kxyz.device.type == "cpu" and bool(torch.isfinite(total := values_kxyz.sum())):
        # Half the time; a sum may also overflow, so one that is not finite proves nothing.
        return torch.isfinite(total)
    return torch.isfinite(torch.stack([value for channel in values_kxyz for value in torch.aminmax(channel)])).all()


def both(first: Values, second: Values) -> Values:
    """Whether two results of `is_finite` are true, on the device of the second."""
    return first and second if isinstance(second, bool) else first.to(second.device) & second


def fill_largest(classes_xyz: Values, values_kxyz: Values) -> None:
    """Writes the index of each voxel's largest value, the first of equal ones, into classes on any device."""
    if not isinstance(values_kxyz, np.ndarray):
        # argmax takes 3 to 17 times as long on a CPU (docs/log).
        classes_xyz.copy_(values_kxyz.max(dim=0).indices)
        return
    # argmax along the first axis takes a transposed copy.
    largest = values_kxyz[0].copy()
    classes_xyz[...] = 0
    for index, values in enumerate(values_kxyz[1:], start=1):
        is_larger = values > largest
        np.copyto(largest, values, where=is_larger)
        classes_xyz[is_larger] = index


def exp(values: Values) -> Values:
    """The exponential of each value."""
    return np.exp(values) if isinstance(values, np.ndarray) else values.exp()


def softmax(values_kxy: Values) -> Values:
    """Probabilities of classes along the first axis."""
    if not isinstance(values_kxy, np.ndarray):
        return values_kxy.softmax(dim=0)
    raised = np.exp(values_kxy - values_kxy.max(axis=0))
    return raised / raised.sum(axis=0)


def sigmoid(values: Values) -> Values:
    """The probability of each value by itself."""
    if not isinstance(values, np.ndarray):
        return values.sigmoid()
    # The hyperbolic tangent cannot overflow.
    return 0.5 + 0.5 * np.tanh(0.5 * values)


def outside_inference_mode(device: Device) -> AbstractContextManager[object]:
    """The context in which tensors are made that are kept; does nothing without torch."""
    if isinstance(device, Host):
        return nullcontext()
    import torch

    return torch.inference_mode(False)


def without_gradients(device: Device) -> AbstractContextManager[object]:
    """The context in which networks are called; does nothing without torch."""
    if isinstance(device, Host):
        return nullcontext()
    import torch

    return torch.no_grad()
