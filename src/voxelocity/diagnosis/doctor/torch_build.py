"""What torch is and what it sees, found out in a separate process: a broken torch must not end the doctor."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from voxelocity.diagnosis.doctor.seen import Torch
from voxelocity.observe.command import signal_name

_CHILD = Path(__file__).with_name("torch_child.py")
_TIMEOUT_S = 60.0


def see_torch(command: Sequence[str] | None = None, *, timeout_s: float = _TIMEOUT_S) -> Torch:
    """Torch of this Python, imported in a fresh process that then asks it whether it can use a GPU.

    Args:
        command: that prints what `torch_child.py` prints, for tests.
        timeout_s: after which the process is ended.
    """
    # -P: puts no folder in front of the installed packages, so that nothing shadows them.
    wanted = [sys.executable, "-P", str(_CHILD)] if command is None else list(command)
    try:
        ended = subprocess.run(wanted, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Torch(error=f"`import torch` and asking for a GPU took more than {timeout_s:.0f} s")
    except OSError as error:
        return Torch(error=f"no process could be started to import it ({error.strerror})")
    if ended.returncode < 0:
        return Torch(error=f"the process that imports it ended by {signal_name(-ended.returncode)}")
    lines = ended.stdout.strip().splitlines()
    try:
        values = json.loads(lines[-1])
    except (IndexError, ValueError):
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return Torch(error=f"the process that imports it ended with status {ended.returncode}: {last}")
    known = {field.name for field in dataclasses.fields(Torch)}
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key in known
    }
    return Torch(**plain)
