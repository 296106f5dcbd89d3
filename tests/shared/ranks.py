"""Several processes that train together on this machine, as torchrun starts them."""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from shared.forked import ForkedPython
from shared.limits import HANGS_S

_PREPARED = """
import sys
from pathlib import Path
from voxelocity.data.cache import choose
from voxelocity.planning import make
memory = Path(sys.argv[1])
vars(choose)["memory_folder"] = lambda **_: (memory, "")
vars(make)["_MEASURE"] = "never"
del sys.argv[1]
"""
COMMAND = """
from voxelocity_observe.cli.main import main
main()
"""


def start_ranks(size: int, arguments: Sequence[object], *, memory: Path, script: str = COMMAND) -> list[ForkedPython]:
    """Starts `script`, the command line if not given, on this many ranks.

    Args:
        size: number of ranks.
        arguments: of the program.
        memory: a folder in place of the file system in memory.
        script: what each rank runs.
    """
    common = {
        **os.environ,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    return [
        ForkedPython(_PREPARED + script, [memory, *arguments], {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(size)
    ]


def free_port() -> int:
    """One that no program listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def finish(processes: Sequence[ForkedPython], *, timeout_s: float = HANGS_S) -> list[tuple[int, str, str]]:
    """Status, output and errors of each rank; none is left running."""
    try:
        return [(*reversed(_ended(process, timeout_s)),) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _ended(process: ForkedPython, timeout_s: float) -> tuple[str, str, int]:
    out, err = process.communicate(timeout=timeout_s)
    return err, out, process.returncode
