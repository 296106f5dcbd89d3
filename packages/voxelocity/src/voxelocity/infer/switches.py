"""The switches of a process while a model predicts: those that its network was trained with. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from voxelocity.infer.model import PredictionSpec
from voxelocity_observe.core.device import Device, Host


@contextmanager
def switches_of(spec: PredictionSpec, devices: Sequence[Device]) -> Iterator[None]:
    """Within the block, CUDA's libraries and our kernels compute as the model says; afterwards as before.

    cuDNN tries no algorithms: the last pass of a scan is of another size, and trying costs more than it gains.

    Args:
        spec: of the model; without `backend`, nothing changes.
        devices: on which it predicts; nothing changes without a CUDA device.
    """
    on_cuda = [device for device in devices if not isinstance(device, Host) and device.type == "cuda"]
    if spec.backend is None or not on_cuda:
        yield
        return
    from voxelocity.step import backend_as_found, set_backend

    # The allocator keeps a setting for good.
    backend = spec.backend.model_copy(update={"cudnn_benchmark": False, "expandable_segments": False})
    with backend_as_found(on_cuda[0]):
        set_backend(backend, on_cuda[0])
        yield
