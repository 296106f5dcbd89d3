"""How much memory a step takes, by patch, batch, channels and classes: quickly from above, or counted exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from voxelocity.parallel.footprint import peak_bytes
from voxelocity.planning.step_forecast import PatchPass
from voxelocity.step import (
    NETWORKS,
    LossConfig,
    NetworkConfig,
    OptimizerConfig,
    PrecisionConfig,
    autocast,
    build_loss,
    build_network,
    build_optimizer,
)
from voxelocity_observe.core.errors import ConfigError

_GIB = 2**30
# Weight, gradient, two moments of AdamW, copy in half precision, running average.
_BYTES_PER_WEIGHT = 20
# Patches as float32 and labels as uint8: four batches ahead, one in use, one being made, and the fixed inputs of a step
# that runs as a CUDA graph.
_BATCHES_ON_DEVICE = 7
# Workspaces of convolutions, copies between memory formats and fragmentation are not tensors we can count. With
# this factor nnU-Net's reference, two patches of 560 million features, comes to 8.7 GB; its planner gives them 8 GB
# (nnunetv2, ExperimentPlanner, UNet_reference_val_corresp_GB).
_MARGIN = 1.3
# Code of cuDNN and cuBLAS, loaded with the first step.
LIBRARIES_BYTES = _GIB // 2
WORKSPACE_BYTES = _GIB // 4
"""Workspaces that cuDNN's algorithms take besides the margin. MLPerf's submission allowed 4 GB on 80 GB; without them
cuDNN falls back to slower algorithms, it does not fail."""
# Activations kept with dropout, relative to without: counted as in tests/planning/test_memory_rule.py.
_DROPOUT_SHARE = 1.7


def device_bytes(patch: PatchPass, *, batch_size: int) -> int:
    """Bytes of a device's free memory that training on batches of these patches is expected to take at its peak.

    Tensors that the backward pass needs are counted exactly for DynUNet and overestimated for other networks; our tests
    compare them with what a step holds on a CPU. A margin covers what cannot be counted there. A step that runs as a
    CUDA graph has the same tensors and its fixed inputs, but keeps them: `window_bytes` come on top of it.
    """
    batches = _BATCHES_ON_DEVICE * math.prod(patch.shape_voxel) * (4 * patch.num_channels + 1)
    weights = _BYTES_PER_WEIGHT * _num_weights(patch.network)
    return int(LIBRARIES_BYTES + WORKSPACE_BYTES + weights + batch_size * (batches + _MARGIN * step_bytes(patch)))


def window_bytes(window: PatchPass) -> int:
    """Bytes of the tensors of one window in a validation, without gradients."""
    network, value, voxels = window.network, 2 if window.is_half else 4, math.prod(window.shape_voxel)
    # The features from the way down, those brought up, both joined, and a convolution's input and result.
    finest = 6 * network.widths[0] * value * voxels / math.prod(network.stem_stride)
    # Logits, and their sum in float32.
    return int(finest) + voxels * (window.num_channels * (4 + value) + window.num_outputs * (value + 4))


def step_bytes(patch: PatchPass) -> int:
    """Bytes of the tensors of one patch at the peak of a step."""
    network, value = patch.network, 2 if patch.is_half else 4
    voxels, kept = math.prod(patch.shape_voxel), 0.0
    coarse = voxels / math.prod(network.stem_stride)
    for level, width in enumerate(network.widths):
        # Results of each convolution and its norm: two convolutions down, two up, and the joined input of the latter.
        num_kept = 4 if level == len(network.widths) - 1 else 10
        kept += num_kept * width * value * coarse / math.prod(math.prod(s) for s in network.strides[:level])
    kind = NETWORKS[network.name]
    kept *= kind.kept_share
    kept *= kind.residual_share if network.num_res_units else 1.0
    kept *= _DROPOUT_SHARE if network.dropout else 1.0
    image = patch.num_channels * (4 + value)
    # Logits; for the loss their log-probability and probability in float32 and a mask; class indices as int64.
    loss = patch.num_outputs * (value + 4 + 4 + 1) + 9
    # The backward pass holds three more of the loss's float32 tensors, or gradients of the finest level.
    way_back = max(12 * patch.num_outputs, 5 * network.widths[0] * value)
    return int(kept) + voxels * (image + loss + way_back)


def _num_weights(network: NetworkConfig) -> int:
    """Weights of DynUNet without biases and norms; other networks of equal widths have about as many."""
    widths = network.widths
    down = sum(27 * (before * width + width * width) for before, width in pairwise((1, *widths)))
    up = sum(8 * below * width + 27 * 3 * width * width for width, below in pairwise(widths))
    return down + up


@dataclass(frozen=True, kw_only=True)
class StepTensors:
    """Bytes of the tensors of a training on one device.

    Attributes:
        weights: with buffers.
        gradients: of the weights.
        optimizer: its state, and the running average of the weights.
        activations: what a step makes in addition, at its peak.
        windows: what a pass of windows without gradients makes, at its peak.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    windows: int


@dataclass(frozen=True, kw_only=True)
class CountedStep:
    """A training step whose tensors are counted.

    Attributes:
        network: what is trained.
        loss: what a step minimizes.
        optimizer: how weights follow.
        precision: of the step.
        num_outputs: channels of the logits.
        regions: as for `build_loss`.
        ignored: as for `build_loss`.
        has_fused_loss: whether code of ours computes the loss, which makes nothing of the size of the logits but their
            gradient; torch's makes about 20 bytes a voxel and class more.
    """

    network: NetworkConfig
    loss: LossConfig
    optimizer: OptimizerConfig
    precision: PrecisionConfig
    num_outputs: int
    regions: Sequence[Sequence[int]] = ()
    ignored: int | None = None
    has_fused_loss: bool = False


def count_tensors(
    step: CountedStep, *, batch_bcxyz: Sequence[int], windows_bcxyz: Sequence[int], device: torch.device
) -> StepTensors:
    """The tensors of a step and of a pass of windows, counted by computing both with shapes alone, without memory.

    Takes tenths of a second, seconds the first time. A compiled network may keep less.

    Args:
        step: what is trained, and how.
        batch_bcxyz: shape of a batch.
        windows_bcxyz: shape of a pass of windows.
        device: where the step runs.

    Raises:
        ConfigError: the user's own network reads values, so it cannot be computed with shapes alone.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    network, loss, optimizer, precision = step.network, step.loss, step.optimizer, step.precision
    num_outputs = step.num_outputs

    # SciPy computes distances on the host, one float for each logit.
    distance = 2 * 4 * num_outputs * batch_bcxyz[0] * math.prod(batch_bcxyz[2:]) if loss.boundary_weight else 0
    compute_loss = build_loss(
        loss.model_copy(update={"boundary_weight": 0.0}), regions=step.regions, ignored=step.ignored
    )
    counting = torch.device("cpu")
    with FakeTensorMode(), device:
        trained = build_network(network, num_channels=batch_bcxyz[1], num_classes=num_outputs, seed=0).train()
        parameters = [*trained.parameters()]
        updates = build_optimizer(optimizer, parameters)
        image, label = torch.empty([*batch_bcxyz]), torch.empty((batch_bcxyz[0], *batch_bcxyz[2:]), dtype=torch.uint8)

        def gradients() -> None:
            updates.zero_grad(set_to_none=True)
            laid_out = image.to(memory_format=precision.memory_format)
            with autocast(precision, device):
                logits = trained(laid_out)
            value: Any = _FusedLoss.apply(logits) if step.has_fused_loss else compute_loss(logits, label)  # type: ignore[no-untyped-call]
            del logits
            value.backward()

        def update() -> None:
            torch.nn.utils.clip_grad_norm_(parameters, optimizer.clip_norm)
            updates.step()

        try:
            # The state of the optimizer begins with its first step.
            gradients()
            update()
            updates.zero_grad(set_to_none=True)
            with peak_bytes(counting) as computing:
                gradients()
            with peak_bytes(counting) as updating:
                update()
            with peak_bytes(counting) as passing, torch.no_grad(), autocast(precision, device):
                trained.eval()(torch.empty([*windows_bcxyz]))
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise ConfigError(
                f"plan: the tensors of network {network.name} {network.factory} cannot be counted from shapes only "
                f"({first}); for that, a network must not read tensor values"
            ) from None
        weights = _total_bytes([*parameters, *trained.buffers()])
        average = weights if optimizer.average_decay else 0
        gradient, state = _total_bytes(parameters), _total_bytes(tree_leaves(updates.state_dict()["state"]))
        return StepTensors(
            weights=weights,
            gradients=gradient,
            optimizer=state + average,
            activations=max(computing() - gradient, updating()) + distance,
            windows=passing(),
        )


class _FusedLoss(torch.autograd.Function):
    """The tensors of `step.fused_loss` and `step.native_loss`, which cannot run on shapes alone."""

    @staticmethod
    def forward(context: Any, logits: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(logits)
        return torch.empty((), device=logits.device)

    @staticmethod
    def backward(context: Any, outer: torch.Tensor) -> torch.Tensor:
        (logits,) = context.saved_tensors
        return torch.empty_like(logits)


def _total_bytes(values: Sequence[object]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))
