"""The losses of `loss` in two passes over the logits by `triton_loss`: which logits they take, and their autograd."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from voxelocity.core.cases import MAX_BYTE_CLASSES
from voxelocity.core.kernels import Launch, describe_launch, launch
from voxelocity.step.fused import differentiable_once, has_triton, is_fused
from voxelocity.step.loss_table import LOSSES, LossConfig, share_of_positives
from voxelocity_observe.core.device import as_current

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MOST_REGIONS = 32
"""Bits of a row of `regions`."""
_MOST_VOXELS = 2**31 - 2**16
"""Of a patch: the kernels count them in int32."""
_SUMMED_AT_ONCE = 4096
_SUMMING_WARPS = 8


@dataclass(frozen=True, kw_only=True)
class LossTiling:
    """How a kernel divides a patch among its threads.

    Attributes:
        block: voxels of a tile.
        align: adjacent voxels that a thread reads at once, if classes are planes.
        num_warps: of a program.
        programs: for each multiprocessor, over all patches.
        is_by_thread: of channels-last logits, whether a thread reads all classes of a voxel.
    """

    block: int
    align: int
    num_warps: int
    programs: int
    is_by_thread: bool = False

    def fold(self, num_classes: int, *, is_channels_last: bool) -> int:
        """Voxels of a tile that one thread holds, so that adding them up needs no exchange."""
        if not is_channels_last:
            return self.align
        # A thread reads adjacent classes at once where that is aligned; others are spread over the lanes of a warp.
        at_once = min(8, num_classes & -num_classes)
        lanes = 1 if self.is_by_thread else min(32, _padded(num_classes) // at_once)
        return max(1, self.block * lanes // (32 * self.num_warps))


def tiling(num_classes: int, *, is_channels_last: bool, is_gradient: bool) -> LossTiling:
    """Up to 32 logits a thread; where registers and addresses allow it, a thread has all classes of its voxels.

    Only read from the machine code and from arithmetic (`benchmarks/triton_kernels.py`, `benchmarks/gpu/e05_loss.py`).
    """
    padded = _padded(num_classes)
    if is_channels_last and padded <= (4 if is_gradient else 16):
        # Reads of the classes one after another meet in the cache. Writes do not: they cost a sector each.
        is_by_thread = num_classes != padded
        return LossTiling(block=2048 // padded, align=1, num_warps=4, programs=8, is_by_thread=is_by_thread)
    if is_channels_last:
        # The warps of a program share out classes before voxels, and would have to exchange sums in shared memory.
        return LossTiling(block=max(4, 512 // padded), align=1, num_warps=1, programs=32)
    if padded <= 16:
        align = min(8, 32 // padded)
        return LossTiling(block=128 * align, align=align, num_warps=4, programs=8)
    return LossTiling(block=max(8, 4096 // padded), align=4, num_warps=4, programs=8)


def _padded(num_classes: int) -> int:
    return max(2, 1 << (num_classes - 1).bit_length())


def can_fuse(logits: torch.Tensor, label: torch.Tensor, config: LossConfig, num_regions: int) -> bool:
    """Whether the kernels can and may compute this loss; reads no values.

    They cannot where torch traces its operations, which it does with tensors of its own kinds or while it compiles.
    """
    return (
        is_fused("loss")
        and type(logits) in (torch.Tensor, torch.nn.Parameter)
        and type(label) is torch.Tensor
        and _runs_on(logits.device.type)
        and logits.device == label.device
        and logits.dtype in _DTYPES
        and label.dtype == torch.uint8
        and label.shape == (logits.shape[0], *logits.shape[2:])
        and 0 < len(logits) < 2**16
        and 0 < logits.shape[1] <= (MOST_REGIONS if num_regions else MAX_BYTE_CLASSES)
        and 0 < math.prod(logits.shape[2:]) <= _MOST_VOXELS
        and has_kernels(config)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    )


def has_kernels(config: LossConfig) -> bool:
    """Whether the kernels compute this loss, whatever the tensors and the device."""
    return LOSSES[config.name].has_kernels and config.boundary_weight == 0.0


def _runs_on(device_type: str) -> bool:
    return has_triton() and (device_type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


@dataclass(frozen=True, kw_only=True)
class LossForm:
    """What the kernels of a loss are compiled for, besides the dtype of the logits.

    Attributes:
        num_classes: channels of the logits.
        is_channels_last: whether logits are, in memory; those of one class are not.
        config: which loss.
        has_regions: whether classes overlap.
        has_ignored: whether some voxels count in no term.
        tilings: of the sums and of the gradient, in place of those for the number of classes; for measurements.
    """

    num_classes: int
    is_channels_last: bool
    config: LossConfig
    has_regions: bool = False
    has_ignored: bool = False
    tilings: tuple[LossTiling, LossTiling] | None = None

    def tiling(self, *, is_gradient: bool) -> LossTiling:
        if self.tilings is not None:
            return self.tilings[is_gradient]
        return tiling(self.num_classes, is_channels_last=self.is_channels_last, is_gradient=is_gradient)

    def align(self, num_voxels: int, *, is_gradient: bool) -> int:
        """Adjacent voxels that a thread reads at once, of patches of this size."""
        align = self.tiling(is_gradient=is_gradient).align
        return align if num_voxels % align == 0 else 1

    @property
    def term(self) -> int:
        from voxelocity.step import triton_loss

        term = LOSSES[self.config.name].of_voxels
        value: int = triton_loss.NO_TERM if term is None else vars(triton_loss)[term.kernel]
        return value

    def constants(self, kernel: str, num_voxels: int) -> dict[str, Any]:
        """Compile-time arguments of a kernel, and the warps of its programs, for patches of this size.

        Nothing depends on the size but whether the tiling's `align` divides it.
        """
        is_gradient, padded = kernel == "loss_gradient", _padded(self.num_classes)
        tiles, align = self.tiling(is_gradient=is_gradient), self.align(num_voxels, is_gradient=is_gradient)
        adding = {"K": self.num_classes, "KP": padded, "ALIGN": align, "HAS_IGNORED": self.has_ignored}
        term = {"REGIONS": self.has_regions, "TERM": self.term}
        rows = {**adding, "ROWS": _SUMMED_AT_ONCE // padded, "num_warps": _SUMMING_WARPS}
        if kernel == "add_sums":
            return rows
        if kernel == "loss_of_sums":
            first = 0 if self.has_regions or self.config.include_background or self.num_classes == 1 else 1
            return {**rows, **term, "FIRST": first, "OVER_BATCH": self.config.dice_over_batch}
        order = _order(tiles, is_channels_last=self.is_channels_last)
        shared = {**adding, **term, "BLOCK": tiles.block, "ORDER": order, "num_warps": tiles.num_warps}
        if is_gradient:
            return shared
        return {**shared, "FOLD": tiles.fold(self.num_classes, is_channels_last=self.is_channels_last)}


def _order(tiling: LossTiling, *, is_channels_last: bool) -> int:
    from voxelocity.step import triton_loss

    if not is_channels_last:
        return triton_loss.PLANES
    return triton_loss.BY_THREAD if tiling.is_by_thread else triton_loss.BY_LANE


class FusedLoss:
    """The loss of `build_loss` for logits and labels that `can_fuse` takes. Safe under autocast and in CUDA graphs.

    Memory besides the gradient is some sums of each program. Sums are in float32, in the same order at each call.

    Args:
        config: which loss; without a boundary term.
        regions: as for `build_loss`.
        ignored: as for `build_loss`.
        tilings: of the sums and of the gradient, in place of those for the number of classes; for measurements.
    """

    def __init__(
        self,
        config: LossConfig,
        *,
        regions: Sequence[Sequence[int]] = (),
        ignored: int | None = None,
        tilings: tuple[LossTiling, LossTiling] | None = None,
    ) -> None:
        self.config = config
        self.ignored = ignored
        self.tilings = tilings
        self.has_regions = len(regions) > 0
        self._regions = [sum(1 << c for c, some in enumerate(regions) if y in some) for y in range(MAX_BYTE_CLASSES)]
        self._tables: dict[torch.device, torch.Tensor] = {}

    def loss(self, logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """The loss of a batch, a scalar in float32; not for a loss with `LossKind.of_index`."""
        value: torch.Tensor = _Loss.apply(_dense(logits), label.contiguous(), self)  # type: ignore[no-untyped-call]
        return value

    def sums(self, logits: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The sizes of overlaps (2, b, k), the mean loss of a voxel, and over how many voxels it is; all float32."""
        made: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _Sums.apply(  # type: ignore[no-untyped-call]
            _dense(logits), label.contiguous(), self
        )
        return made

    def table(self, device: torch.device) -> torch.Tensor:
        """Bits of the regions of each label, copied to the device once."""
        if device not in self._tables:
            bits = torch.tensor(self._regions if self.has_regions else [0])
            self._tables[device] = bits.to(torch.int32).to(device)
        return self._tables[device]


def _dense(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.is_contiguous() or _is_channels_last(logits) else logits.contiguous()


def _is_channels_last(logits: torch.Tensor) -> bool:
    return not logits.is_contiguous() and logits.movedim(1, -1).is_contiguous()


class _Call:
    """One pass of a loss over the logits: the arguments of its kernels."""

    def __init__(self, loss: FusedLoss, logits: torch.Tensor, label: torch.Tensor, *, is_gradient: bool) -> None:
        from voxelocity.step import triton_loss

        self.kernels, self.loss, self.logits, self.label = triton_loss, loss, logits, label
        self.batch, self.num_classes, self.num_voxels = len(logits), logits.shape[1], label[0].numel()
        self.padded = _padded(self.num_classes)
        self.form = LossForm(
            num_classes=self.num_classes,
            is_channels_last=_is_channels_last(logits),
            config=loss.config,
            has_regions=loss.has_regions,
            has_ignored=loss.ignored is not None,
            tilings=loss.tilings,
        )
        self.units = self.num_voxels // self.form.align(self.num_voxels, is_gradient=is_gradient)
        self._ignored = -1 if loss.ignored is None else loss.ignored
        self._regions = loss.table(logits.device)
        tiles = self.form.tiling(is_gradient=is_gradient)
        programs = tiles.programs * _multiprocessors(logits.device)
        self.chunks = min(math.ceil(self.num_voxels / tiles.block), max(1, math.ceil(programs / self.batch)))

    def on_device(self) -> AbstractContextManager[object]:
        return as_current(self.logits.device)

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.logits.device)

    def launch(self, kernel: str, grid: tuple[int, ...], *arguments: Any) -> None:
        launch(vars(self.kernels)[kernel], grid, *arguments, **self.form.constants(kernel, self.num_voxels))

    def sums(self) -> torch.Tensor:
        sums = self.empty(self.batch * self.chunks * (3 * self.padded + 2))
        self.launch(
            "loss_sums", (self.chunks, self.batch),
            self.logits, self.label, self._regions, sums, self.units, 1, self._ignored, self.loss.config.focal_gamma,
        )  # fmt: skip
        return sums

    def gradient(self, factors: torch.Tensor, outer: torch.Tensor, *, is_shared: bool) -> torch.Tensor:
        gradient = torch.empty_like(self.logits)
        self.launch(
            "loss_gradient", (self.chunks, self.batch),
            self.logits, self.label, self._regions, factors, outer, gradient,
            self.units, 0 if is_shared else 1, 1, self._ignored, self.loss.config.focal_gamma,
        )  # fmt: skip
        return gradient

    @property
    def alpha(self) -> float:
        return share_of_positives(self.loss.config)


class _Loss(torch.autograd.Function):
    """The whole loss of one process: two launches forward, one backward."""

    @staticmethod
    def forward(context: Any, logits: torch.Tensor, label: torch.Tensor, loss: FusedLoss) -> torch.Tensor:
        call = _Call(loss, logits, label, is_gradient=False)
        config = loss.config
        groups = 1 if config.dice_over_batch else call.batch
        value, factors = call.empty(), call.empty(1 + groups * 2 * call.padded)
        with call.on_device():
            sums = call.sums()
            call.launch(
                "loss_of_sums",
                (1,),
                sums,
                value,
                factors,
                call.batch,
                call.chunks,
                call.units,
                config.smooth,
                call.alpha,
            )
        context.save_for_backward(logits, label, factors)
        context.loss = loss
        return value

    @staticmethod
    @differentiable_once("loss")
    def backward(context: Any, outer: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        logits, label, factors = context.saved_tensors
        call = _Call(context.loss, logits, label, is_gradient=True)
        with call.on_device():
            return call.gradient(factors, outer, is_shared=context.loss.config.dice_over_batch), None, None


class _Sums(torch.autograd.Function):
    """What ranks exchange before their common loss is known."""

    @staticmethod
    def forward(
        context: Any, logits: torch.Tensor, label: torch.Tensor, loss: FusedLoss
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        call = _Call(loss, logits, label, is_gradient=False)
        sizes, terms = call.empty(2, call.batch, call.num_classes), call.empty(2, call.batch)
        with call.on_device():
            sums = call.sums()
            call.launch("add_sums", (call.batch,), sums, sizes, terms, call.chunks, call.units, call.alpha)
        term, known = terms.sum(1)
        weight = 1.0 / (known.clamp_min(1.0) * (call.num_classes if loss.has_regions else 1))
        context.save_for_backward(logits, label, weight)
        context.loss = loss
        context.mark_non_differentiable(known)
        return sizes, term * weight, known

    @staticmethod
    @differentiable_once("loss")
    def backward(
        context: Any, of_sizes: torch.Tensor, of_mean: torch.Tensor, _: torch.Tensor
    ) -> tuple[torch.Tensor, None, None]:
        logits, label, weight = context.saved_tensors
        call = _Call(context.loss, logits, label, is_gradient=True)
        factors = torch.zeros(1 + call.batch * 2 * call.padded, dtype=torch.float32, device=logits.device)
        if call.form.term != call.kernels.NO_TERM:
            factors[0] = of_mean * weight
        groups = factors[1:].view(call.batch, 2, -1)[:, :, : call.num_classes]
        groups[:, 0], groups[:, 1] = of_sizes[0], 2.0 * call.alpha * of_sizes[1]
        with call.on_device():
            return call.gradient(factors, factors.new_ones(()), is_shared=False), None, None


@lru_cache
def _multiprocessors(device: torch.device) -> int:
    """Of a CUDA device; where kernels are interpreted, a few, which show as much as many."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def possible_launches(form: LossForm, dtype: torch.dtype, *, num_voxels: int, is_shared: bool) -> list[Launch]:
    """What a loss that `can_fuse` launches for logits of this kind, forward and backward, each once.

    Args:
        form: of the loss.
        dtype: of the logits.
        num_voxels: of a patch.
        is_shared: whether several ranks make a batch together.
    """
    from voxelocity.step import triton_loss

    # Numbers stand for any others.
    given = {
        **dict.fromkeys(("units", "step", "ignored", "batch", "chunks", "group_step"), 7),
        **dict.fromkeys(("gamma", "smooth", "alpha"), 0.5),
        **dict.fromkeys(("logits", "gradient"), dtype),
        "label": torch.uint8,
        "regions": torch.int32,
    }
    found = []
    summing = "add_sums" if is_shared or LOSSES[form.config.name].of_index is not None else "loss_of_sums"
    for name in ("loss_sums", summing, "loss_gradient"):
        kernel, constants = vars(triton_loss)[name], form.constants(name, num_voxels)
        arguments = [given.get(argument, torch.float32) for argument in kernel.arg_names if argument not in constants]
        found.append(describe_launch(kernel, arguments, constants))
    return found
