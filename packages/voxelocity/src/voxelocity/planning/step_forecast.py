"""How long a step will take on a GPU, by arithmetic: its work at the rates of the card. Nothing is measured here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from voxelocity.core.region import Index3
from voxelocity.planning.cards import card_rates, float32_share
from voxelocity.planning.machine import Machine
from voxelocity.step import NetworkConfig

ENOUGH_STEPS = 750
"""Steps that a run should have: MONAI's fast tutorial takes 760 to a Dice of 0.95 on the spleen, of 16 patches of 96^3
at 1.5 x 1.5 x 2 mm (Project-MONAI/tutorials, acceleration/fast_training_tutorial)."""

# A step computes each convolution forward, and backward for its input and its weights.
_PASSES = 3
# Convolutions reach at most this share of the rate on a data sheet: half of it in MLPerf's best submissions.
_CONVOLUTION_SHARE = 0.5
# Reads and writes of each result of a convolution: 6 of the convolutions themselves, 8 (fused) to 21 (copied between
# memory formats) of norm and activation, the rest of joining features.
_ACCESSES = 20
# Of the time that a step of DynUNet takes, the share that its work takes at the card's rates: from 212 ms for 8 patches
# of 160x160x80 on an H100 (2026-11-27; docs/log). MLPerf 3.1's unet3d reached 0.75 there and 0.9 on an A100, with norms
# fused (training_results_v3.1). Other cards were not measured.
_ROOF_SHARE = 0.4
# The least that a step takes on the host: launches and Python.
_FLOOR_S = 0.021
# Of the loss, for each voxel and output.
_LOSS_BYTES = 100


@dataclass(frozen=True, kw_only=True)
class PatchPass:
    """A network's pass over one patch, or over one window, whose work and memory are counted.

    Attributes:
        network: which network.
        shape_voxel: of the patch.
        num_channels: of the image.
        num_outputs: channels of the logits: classes with the background, or overlapping classes.
        is_half: whether convolutions compute in half precision.
    """

    network: NetworkConfig
    shape_voxel: Index3
    num_channels: int
    num_outputs: int
    is_half: bool


@dataclass(frozen=True, kw_only=True)
class StepDemand:
    """What a step on one patch computes and moves.

    Attributes:
        flops: floating-point operations of convolutions, forward and backward.
        bytes: of memory traffic.
    """

    flops: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run on a GPU is expected to get done.

    Attributes:
        step_s: seconds of a step.
        device_s: the part of it in which the device works; the rest is launches.
        available_s: seconds for all of them; infinite if their number ends the run.
        is_to_target: whether a Dice ends the run.
    """

    step_s: float
    device_s: float
    available_s: float
    is_to_target: bool = False

    @property
    def num_steps(self) -> int:
        """Steps that fit into the time; 0 if it is not limited."""
        return 0 if math.isinf(self.available_s) else int(self.available_s / self.step_s)

    def to_plain(self) -> dict[str, float]:
        """What `run.yaml` keeps of it, to compare with what the run did."""
        return {"step_s": round(self.step_s, 5), "device_s": round(self.device_s, 5), "num_steps": self.num_steps}


def step_work(patch: PatchPass) -> StepDemand:
    """The work of one patch, counted for DynUNet; networks of equal widths and strides are taken for one."""
    network, num_outputs = patch.network, patch.num_outputs
    strides, widths, stem = ((1, 1, 1), *network.strides), network.widths, network.stem_stride
    whole = math.prod(patch.shape_voxel)
    has_stem = stem != (1, 1, 1)
    voxels = whole / math.prod(stem)
    flops, values = 2.0 * whole * widths[0] * num_outputs, float(whole * num_outputs)
    if has_stem:
        flops += 2.0 * voxels * math.prod(4 if s > 1 else 3 for s in stem) * patch.num_channels * widths[0]
        values += voxels * widths[0]
    at_level: list[float] = []
    for before, width, stride in zip(
        (widths[0] if has_stem else patch.num_channels, *widths), widths, strides, strict=False
    ):
        voxels /= math.prod(stride)
        at_level.append(voxels)
        flops += 2.0 * voxels * _kernel_voxels(stride) * (before + width) * width
        values += 2.0 * voxels * width
    for (width, below), stride, finer in zip(pairwise(widths), strides[1:], at_level, strict=False):
        flops += 2.0 * finer * width * (below + 3.0 * _kernel_voxels(stride) * width)
        values += 3.0 * finer * width
    moved = _ACCESSES * values * (2 if patch.is_half else 4) + _LOSS_BYTES * whole * num_outputs
    return StepDemand(flops=_PASSES * flops, bytes=moved)


def forecast_step_s(patch: PatchPass, machine: Machine, *, batch_size: int) -> tuple[float, float]:
    """Expected seconds of a step on this many patches on one GPU of the machine, and of the device alone in it.

    The device takes the sum of the times of its convolutions and its memory traffic; a step takes at least what the
    host takes. On an H100 it gives 0.22 s for 8 patches of 128^3 in nnU-Net's network; MLPerf's submission took 0.11 s.
    """
    rates, work = card_rates(machine), step_work(patch)
    flops_per_s = rates.half_flops * _CONVOLUTION_SHARE * (1.0 if patch.is_half else float32_share(machine))
    roof_s = batch_size * (work.flops / flops_per_s + work.bytes / rates.bytes_per_s)
    device_s = roof_s / _ROOF_SHARE
    return max(_FLOOR_S, device_s), device_s


def _kernel_voxels(stride: Index3) -> int:
    """Voxels of the kernel of a level of this stride, as `build_network` chooses it."""
    return 27 if set(stride) == {1} else math.prod(3 if s > 1 else 1 for s in stride)
