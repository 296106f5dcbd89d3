"""The kernels of the window engine, compiled before the first window."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING

from voxelocity.core.cases import MAX_BYTE_CLASSES
from voxelocity.core.laterality import swapped_classes
from voxelocity.core.region import Index3
from voxelocity.data.prepare import resize_record
from voxelocity.infer.model import ForeignNetwork, Model, PredictionSpec
from voxelocity.infer.sinks import ClassMap, ScanLabels
from voxelocity.infer.window import stitch_volumes
from voxelocity.step.fused import has_triton, is_fused
from voxelocity.step.precision_config import precision_on
from voxelocity_observe.core.device import Device, Host

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from voxelocity.core.kernels import Launch
    from voxelocity.infer.stitched import TileSink

# Kernels are compiled for no size, so small volumes stand for all: of one window, and of several.
_SIDE = 8
_SHAPES: tuple[Index3, ...] = ((_SIDE, _SIDE, _SIDE), (2 * _SIDE, _SIDE, _SIDE))


def compile_prediction(model: Model, device: Device) -> None:
    """Begins to compile, in threads, what predictions of a model called directly launch, as `core.compiling` does.

    Does nothing but on a CUDA device.
    """
    network, spec = model.network, model.spec
    if isinstance(device, Host) or device.type != "cuda" or isinstance(network, ForeignNetwork):
        return
    from voxelocity.core.compiling import compile_all

    compile_all(partial(_of_model, network, spec, device), device)


def _of_model(network: torch.nn.Module, spec: PredictionSpec, device: torch.device) -> list[Launch]:
    from voxelocity.step.fused_norm import forward_launches
    from voxelocity.step.precision import compute_dtype

    precision = precision_on(spec.precision, device)
    has_norms = has_triton() and is_fused("norm") and precision.channels_last
    norms = forward_launches(network, compute_dtype(precision)) if has_norms else []
    return [*norms, *possible_launches(spec, device)]


def possible_launches(spec: PredictionSpec, device: torch.device) -> list[Launch]:
    """Each launch that predictions can make of a network called directly, once; they do not depend on volumes.

    The engine itself makes them, of small volumes on the device "meta": on the prepared grid, as validations do while
    training, and on that of scans with another spacing; with the mirrorings and without, as quick validations do.
    """
    if not has_triton() or not is_fused("window") or spec.num_outputs > MAX_BYTE_CLASSES:
        return []
    import torch

    from voxelocity.core.kernels import distinct, record_launches
    from voxelocity.step.precision import compute_dtype

    precision = precision_on(spec.precision, device)
    dtype = compute_dtype(precision)

    def forward(windows: torch.Tensor) -> torch.Tensor:
        shape = (len(windows), spec.num_outputs, *windows.shape[2:])
        return torch.empty(shape, dtype=dtype, device="meta", memory_format=precision.memory_format)

    meta = torch.device("meta")
    update = {"shape_voxel": (_SIDE, _SIDE, _SIDE), "reuse_constant": False, "sum_on": "auto"}
    window = spec.window.model_copy(update=update)
    swapped: Sequence[int] = () if spec.region_order else swapped_classes(spec.class_names, window.swap_pairs)
    with record_launches(runs=False) as launches, torch.inference_mode(False):
        for shape, axes in itertools.product(_SHAPES, dict.fromkeys([window.mirror_axes, ()])):
            x, y, z = shape
            image = torch.empty((len(spec.channels), *shape), device=meta)
            sinks: list[TileSink] = [
                ClassMap(shape, region_order=spec.region_order),
                ScanLabels(shape, [resize_record((x + 1, y, z), shape)], spec, num_threads=1),
            ]
            for _ in stitch_volumes(
                forward,
                [(image, sink) for sink in sinks],
                window.model_copy(update={"mirror_axes": axes}),
                device=meta,
                num_outputs=spec.num_outputs,
                swapped_classes=swapped,
            ):
                pass
    return distinct(launches)
