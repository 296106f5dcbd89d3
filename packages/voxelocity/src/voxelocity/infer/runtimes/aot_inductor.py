"""AOTInductor, torch's compiler ahead of time, for any number of windows of one shape. `program` compiles."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from voxelocity.infer.runtimes.contract import ExportFormat, Forward, Runtime, RuntimeTask
from voxelocity.infer.runtimes.native import why_not_compiled

if TYPE_CHECKING:
    import torch


def load(network: torch.nn.Module, task: RuntimeTask) -> Forward:
    """The compiled network."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.pt2"
        write_package(network, task, path)
        return open_package(path, task)


def write_package(network: torch.nn.Module, task: RuntimeTask, path: Path) -> bool:
    """Writes the compiled network, which takes windows of one shape."""
    from voxelocity.infer.runtimes.program import compile_package

    compile_package(network, task, path)
    return False


def open_package(path: Path, task: RuntimeTask) -> Forward:
    """The network that `write_package` wrote. Runs the machine code in it: open only what you trust."""
    from voxelocity.infer.runtimes import program

    return program.open_package(path)


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
