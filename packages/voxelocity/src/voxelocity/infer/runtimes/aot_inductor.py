"""AOTInductor, torch's compiler ahead of time, for any number of windows of one shape."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from voxelocity.infer.runtimes.contract import ExportFormat, Forward, Runtime, RuntimeTask
from voxelocity.infer.runtimes.native import load_eager, why_not_compiled

if TYPE_CHECKING:
    import torch


def load(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """The compiled network."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.pt2"
        write_package(network, task, path)
        return open_package(path, task)


def write_package(network: torch.nn.Module, task: RuntimeTask, path: Path) -> bool:
    """Writes the network as machine code for this kind of device, weights inside.

    It computes in the number formats of the task, on its device, on windows of its shape, one to `batch_size` of them.
    """
    import torch
    from torch._inductor import aoti_compile_and_package

    from voxelocity.infer.runtimes.program import example_of, quiet

    class Precise(torch.nn.Module):
        """The network with the number formats and the memory format of the task."""

        def __init__(self) -> None:
            super().__init__()
            self.network, self._forward = network, load_eager(network, task)

        def forward(self, windows_bcxyz: torch.Tensor) -> torch.Tensor:
            return self._forward(windows_bcxyz)

    axes = {0: torch.export.Dim("batch", min=1, max=max(2, task.batch_size))}
    with quiet(), torch.no_grad():
        program = torch.export.export(Precise(), (example_of(network, task),), dynamic_shapes=(axes,))
        aoti_compile_and_package(program, package_path=str(path))
    return False


def open_package(path: Path, task: RuntimeTask) -> Forward:
    """The network that `write_package` wrote. Runs the machine code in it: open only what you trust."""
    import torch
    from torch._inductor import aoti_load_package

    from voxelocity.infer.runtimes.program import quiet

    with quiet():
        package = aoti_load_package(str(path))

    def forward(windows: torch.Tensor) -> torch.Tensor:
        # Its code calls torch's operations, which would otherwise be cast once more.
        with torch.autocast(windows.device.type, enabled=False):
            # It reads memory in the order of the example that it was compiled for.
            logits: torch.Tensor = package(windows.contiguous())
        return logits

    return forward


RUNTIME = Runtime(
    name="aot-inductor",
    why_not=why_not_compiled,
    load=load,
    build_s=60.0,
    export=ExportFormat(
        name="pt2",
        files=("network.pt2",),
        write=write_package,
        open=open_package,
        why_not=lambda device: "",
        is_machine_code=True,
    ),
)
