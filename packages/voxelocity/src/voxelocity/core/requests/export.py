"""The request of `export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from voxelocity.core.requests.plan import DeviceChoice, read_device
from voxelocity_observe.core.request import Option, UserRequest


@dataclass(frozen=True, kw_only=True)
class ExportRequest(UserRequest):
    """What `voxelocity export` takes."""

    run: Path
    """Folder of a finished run."""
    out: Annotated[Path, Option(flags=("-o", "--out"))]
    """Folder for the export.

    It is created if it does not exist.
    """
    to: Annotated[str, Option()]
    """One of `infer.runtimes.table.EXPORT_FORMATS`."""
    device: Annotated[DeviceChoice, Option(read=read_device)] = "auto"
    """cpu, cuda or auto.

    Where both are compared, and what machine code is compiled for.
    """
    cases: Annotated[int, Option(least=0)] = 5
    """Validation cases to compare, at most; 0 compares noise."""
    overwrite: Annotated[bool, Option()] = False
    """Replace an export in --out."""
    factory: Annotated[str, Option(flags=("--network",))] = ""
    """Builder of the run's network, if it is your own: package.module:name."""

    def _check(self) -> None:
        self.check_choice("device", get_args(DeviceChoice))
        self.check_number("cases", "give a whole number from 0", is_whole=True)
