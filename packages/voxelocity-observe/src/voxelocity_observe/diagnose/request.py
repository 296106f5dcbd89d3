"""The request of `diagnose`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.core.request import Option, UserRequest


@dataclass(frozen=True, kw_only=True)
class DiagnoseRequest(UserRequest):
    """How a command is watched, and where what is found goes."""

    command: tuple[str, ...] = ()
    """Program and arguments."""
    folder: Path | None = None
    """Of a run or of a diagnosis, which is read in place of watching a command."""
    out: Annotated[Path | None, Option(flags=("-o", "--out"))] = None
    """Folder to write; the first free 'diagnosis' if not given."""
    seconds: Annotated[float, Option(least=1.0, shown=120)] = 120.0
    """Most seconds of steps to watch.

    The program is ended then.
    """
    is_whole: Annotated[bool, Option(flags=("--whole",))] = False
    """Let the program run to its own end, unchanged."""
    has_experiments: Annotated[bool, Option(flags=("--no-experiments",), is_negated=True)] = True
    """Do not time single stages on their own after the counted steps."""
    keeps_saves: Annotated[bool, Option(flags=("--keep-saves",))] = False
    """Let the program write its files while it is being stopped.

    Otherwise they stay unchanged.
    """
    has_nsys: Annotated[bool, Option(flags=("--nsys",))] = False
    """Record kernels with Nsight Systems, or say why not.

    Without it, that is done where `nsys` and a GPU are there.
    """
    skips_nsys: Annotated[bool, Option(flags=("--no-nsys",))] = False
    """Record kernels with torch.profiler even where `nsys` is installed."""

    def _check(self) -> None:
        self.check_one_of("the first requests Nsight Systems, the second turns it off", "has_nsys", "skips_nsys")
        self.check_number("seconds", "give seconds, at least 1", least=1.0)
        if self.folder is None:
            if not self.command:
                raise InputError(
                    "diagnose: nothing to diagnose; give a command: voxelocity diagnose -- python train.py"
                )
        elif watched := [name for name in _OF_COMMANDS if self.is_given(name)]:
            raise self.refusal(f"{self.folder} is already recorded; leave it out, or give a command", *watched)


_OF_COMMANDS = ("seconds", "is_whole", "has_experiments", "keeps_saves", "has_nsys", "skips_nsys")
