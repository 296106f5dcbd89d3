"""The switches of a process while a model predicts: those that its network was trained with. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from voxelocity.infer.model import PredictionSpec
from voxelocity_observe.core.device import Device, Host

_FOR_GOOD = {"expandable_segments": False, "keep_freed_memory": False}
"""What allocators keep to the end of the process: not for a prediction in a program of the user."""


@contextmanager
def switches_of(spec: PredictionSpec, devices: Sequence[Device]) -> Iterator[None]:
    """Within the block, CUDA's libraries and our own norm compute as the model says; afterwards as before.

    cuDNN tries no algorithms: the last pass of a scan is of another size, and trying costs more than it gains.

    Args:
        spec: of the model; without `backend`, nothing changes.
        devices: on which it predicts; nothing changes without a device of torch.
    """
    of_torch = [device for device in devices if not isinstance(device, Host)]
    if spec.backend is None or not of_torch:
        yield
        return
    from voxelocity.step import backend_as_found, set_backend

    backend = spec.backend.model_copy(update={"cudnn_benchmark": False, **_FOR_GOOD})
    device = next((device for device in of_torch if device.type == "cuda"), of_torch[0])
    with backend_as_found(device):
        set_backend(backend, device)
        yield
