"""Starts the ranks of this machine with torchrun's agent, without its report on a failure: the rank's own is enough."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

# Ranks save their state after the current step, which may take a while.
_MOST_S_TO_STOP = 30


def run_ranks(arguments: Sequence[str], *, num_ranks: int, max_restarts: int = 0) -> int:
    """Runs a command of ours on this many processes of this machine; returns its exit status, of the first that failed.

    Args:
        arguments: of the command line.
        num_ranks: processes.
        max_restarts: how often all of them are started again after one has failed.
    """
    settings: dict[str, Any] = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": num_ranks,
        "run_id": uuid.uuid4().hex,
        "rdzv_backend": "c10d",
        # A free port.
        "rdzv_endpoint": "localhost:0",
        "max_restarts": max_restarts,
        "shutdown_timeout": _MOST_S_TO_STOP,
    }
    # Older versions of torch do not have the last one.
    known = {field.name for field in fields(LaunchConfig)}
    config = LaunchConfig(**{name: value for name, value in settings.items() if name in known})
    # gloo writes to the terminal what it raises as well.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    for name in list(logging.root.manager.loggerDict):
        # Each has a level of its own.
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-m", "voxelocity", *arguments)
    except ChildFailedError as error:
        # One that has said why: it may have killed another, which did not answer.
        spoken = [failure.exitcode for failure in error.failures.values() if failure.exitcode > 0]
        if spoken:
            return spoken[0]
        _, failure = error.get_first_failure()
        # It could not say so itself.
        why = ", as Linux does when memory is full" if failure.exitcode == -signal.SIGKILL else ""
        print(
            f"voxelocity: launch: rank {failure.local_rank} was killed by {failure.signal_name()}{why}; the last "
            "checkpoint is intact, and the same command continues from it",
            file=sys.stderr,
        )
        return 128 - failure.exitcode
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0
