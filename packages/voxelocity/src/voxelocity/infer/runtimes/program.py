"""A network as a program without Python: traced by torch.export, as ONNX.

The batch may have any number of windows; space may have any size where the network allows it.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from voxelocity.infer.runtimes.contract import RuntimeTask, missing
from voxelocity.step.overflow import Float32Layer

_SPATIAL = (2, 3, 4)
_NORMS = (
    torch.nn.modules.batchnorm._NormBase,  # batch and instance norms
    torch.nn.GroupNorm,
    torch.nn.LayerNorm,
)


def why_not_onnx(device: torch.device) -> str:
    """Why networks cannot be written as ONNX here; "" if they can."""
    return missing(("onnx", "onnxscript"), extra="runtimes")


class Converted(torch.nn.Module):
    """A copy of a network with its weights in another number format; takes and returns float32.

    Norms keep float32: in half precision, the sums over millions of voxels would lose digits or overflow. So do layers
    that were trained in it.
    """

    def __init__(self, network: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self._network, self._dtype = copy.deepcopy(network), dtype
        norms = [
            (module, name, part)
            for module in self._network.modules()
            for name, part in module.named_children()
            if isinstance(part, (*_NORMS, Float32Layer)) and dtype != torch.float32
        ]
        # Taken out meanwhile: a variance may be too large or too small for float16.
        for module, name, _ in norms:
            setattr(module, name, torch.nn.Identity())
        self._network.to(dtype)
        for module, name, part in norms:
            setattr(module, name, _InFloat32(part))

    def forward(self, windows_bcxyz: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._network(windows_bcxyz.to(self._dtype))
        return logits.float()


class _InFloat32(torch.nn.Module):
    """A layer that computes in float32, and takes and returns another format."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer.float()

    def forward(self, *features: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(*(tensor.float() for tensor in features))
        return made.to(features[0].dtype)


def to_onnx(network: torch.nn.Module, task: RuntimeTask, *, is_half: bool = False) -> bytes:
    """The network as an ONNX model in float32, weights inside, with an input `image` and an output `logits`.

    The batch is dynamic, and so is each spatial axis whose size the network does not fix. Names of files and stack
    traces, which the exporter writes next to each operation, are removed.

    Args:
        network: in evaluation mode, on any device.
        task: shape of the windows; its precision is not used.
        is_half: whether weights are float16, and all between input and output but norms.
    """
    import onnx

    windows = example_of(network, task)
    if is_half:
        network = Converted(network, torch.float16).eval()
    axes: dict[int, Any] = {0: "batch"} | dict.fromkeys(_SPATIAL, torch.export.Dim.AUTO)
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            network,
            (windows,),
            dynamo=True,
            verbose=False,
            input_names=["image"],
            output_names=["logits"],
            dynamic_shapes=(axes,),
        )
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    for value in (*model.graph.node, *model.graph.value_info, *model.graph.initializer, *model.graph.input):
        del value.metadata_props[:]
        value.doc_string = ""
    content: bytes = model.SerializeToString()
    return content


def has_dynamic_space(onnx_model: bytes) -> bool:
    """Whether an ONNX model takes windows of any size."""
    import onnx

    (image,) = onnx.load_model_from_string(onnx_model).graph.input
    return all(image.type.tensor_type.shape.dim[axis].dim_param for axis in _SPATIAL)


def example_of(network: torch.nn.Module, task: RuntimeTask) -> torch.Tensor:
    """Two windows, because torch.export takes an axis of one element as fixed."""
    device = next((weights.device for weights in network.parameters()), task.device)
    return torch.zeros((2, *task.batch_shape[1:]), device=device)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the exporters' notes on torch's own internals, and on packages that we do not use, off the terminal."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        registration.setLevel(level)
