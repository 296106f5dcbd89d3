"""Bytes of device memory that the loss and its gradient move for each voxel, by arithmetic; needs no device.

    python benchmarks/loss_bytes.py

Each operation of torch reads its inputs and writes its results once; views move nothing. What a device's cache keeps
between two operations is not taken off.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from voxelocity.step import LossConfig, build_loss
from voxelocity.step.fused import is_fused, set_fused

CLASSES = (2, 3, 14, 105)


def fused_bytes(num_classes: int, *, itemsize: int = 2) -> int:
    """Of a voxel: logits and label are read in both passes, the gradient is written in the second."""
    return 3 * num_classes * itemsize + 2


def operation_bytes(
    num_classes: int, *, config: LossConfig | None = None, dtype: torch.dtype = torch.bfloat16
) -> float:
    """Of a voxel, by torch's operations: the reference in `voxelocity.step.loss`."""
    # Large enough that sums of whole patches do not count; tensors without memory.
    shape = (2, 64, 64, 64)
    logits = torch.empty(shape[0], num_classes, *shape[1:], dtype=dtype, device="meta", requires_grad=True)
    label = torch.empty(shape, dtype=torch.uint8, device="meta")
    was_fused = is_fused("loss")
    set_fused("loss", False)  # Triton's interpreter would take our kernels, on tensors without memory.
    try:
        loss = build_loss(config or LossConfig())
        with Traffic() as traffic:
            torch.autograd.grad(loss(logits, label), logits)
    finally:
        set_fused("loss", was_fused)
    return float(traffic.moved_bytes / label.numel())


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within the block, adds up what operations read and write.

    Attributes:
        moved_bytes: so far.
        num_operations: that moved anything, so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved_bytes = 0
        self.num_operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs the operation and counts its tensors."""
        made = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in str(func) and "detach" not in str(func):
            tensors = [leaf for leaf in tree_leaves((args, kwargs, made)) if isinstance(leaf, torch.Tensor)]
            self.moved_bytes += sum(_bytes(tensor) for tensor in tensors)
            self.num_operations += 1
        return made


def _bytes(tensor: torch.Tensor) -> int:
    """What lies in memory: along an expanded axis, all elements are the same one."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return elements * tensor.element_size()


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print("classes  bytes a voxel: operations, fused, ratio")
    for num_classes in CLASSES:
        before, after = operation_bytes(num_classes), fused_bytes(num_classes)
        print(f"{num_classes:7}  {before:8.0f} {after:6} {before / after:6.1f}")


if __name__ == "__main__":
    main()
