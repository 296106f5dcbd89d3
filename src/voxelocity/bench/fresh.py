"""Measuring in a fresh Python: imports, peaks of memory and threads are then those of one program alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from voxelocity.core.errors import VoxelocityError

_NUM_LINES_SHOWN = 10


def python_says(*words: object, environ: Mapping[str, str] | None = None) -> str:
    """What a fresh Python that finds this package prints to stdout.

    Args:
        words: its arguments.
        environ: variables to add to those of this process.

    Raises:
        VoxelocityError: it failed; its last lines are in the text.
    """
    source = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    # As the command line sets it before it imports torch.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": paths, **(environ or {})}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-_NUM_LINES_SHOWN:])
        raise VoxelocityError(
            f"bench: '{' '.join(map(str, words[:3]))} ...' ended with status {done.returncode}:\n{last}"
        )
    return done.stdout
