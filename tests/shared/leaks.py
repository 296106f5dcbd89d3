"""What each test must leave as it found it: the process, its children, memory that is shared, torch's settings."""

from __future__ import annotations

import _signal
import functools
import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

# However busy the machine is.
_ENDS_S = 60.0

State = dict[str, dict[Any, Any]]
"""Values by kind and name."""

# By Blosc2, MONAI and torch's compiler when they are first imported, and by pytest for each test.
_SET_BY_IMPORTS = {
    "_MLFLOW_TELEMETRY_SESSION_ID",
    "CUBLAS_WORKSPACE_CONFIG",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "ME_DSL_JIT_LIBTCC_PATH",
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
}
# By our commands and sinks, for the rest of their process, which is the test's here.
_SET_BY_COMMANDS = {
    "GOMP_SPINCOUNT",
    "MLFLOW_ALLOW_FILE_STORE",
    "MLFLOW_DISABLE_TELEMETRY",
    "OMP_WAIT_POLICY",
    "TORCH_CPP_LOG_LEVEL",
    "WANDB_ERROR_REPORTING",
    "sys.path",
}
# But for that of pytest's time limit, and that which torch sets once for the workers of loaders.
# `signal.getsignal` takes ten times as long, for the names that it gives.
_SIGNALS = tuple(sorted({*map(int, _signal.valid_signals())} - {_signal.SIGALRM, _signal.SIGCHLD}))


@functools.cache
def _settings() -> dict[str, dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]]:
    """How each is read and set."""
    # Here, as processes that only hand out tests need no torch.
    import torch

    cudnn = torch.backends.cudnn
    return {
        "of torch": {
            "dtype": (torch.get_default_dtype, torch.set_default_dtype),
            "threads": (torch.get_num_threads, torch.set_num_threads),
            "gradients": (torch.is_grad_enabled, torch._C._set_grad_enabled),
            "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
            "sharing": (torch.multiprocessing.get_sharing_strategy, torch.multiprocessing.set_sharing_strategy),
            **{
                f"cudnn.{name}": (partial(getattr, cudnn, name), partial(setattr, cudnn, name))
                for name in ("enabled", "benchmark", "deterministic")
            },
        },
        "of the process": {
            "working directory": (os.getcwd, os.chdir),
            "sys.path": (sys.path.copy, partial(sys.path.__setitem__, slice(None))),
        },
    }


def seed_everything() -> None:
    """Draws do not depend on which tests ran before, nor differ from run to run."""
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - MONAI and scripts as people write them use it
    # Not by `torch.manual_seed`, which looks at each kind of device.
    torch.default_generator.manual_seed(0)
    if (transforms := sys.modules.get("monai.transforms.transform")) is not None:
        # What transforms without a state of their own share.
        transforms.Randomizable.R.seed(0)


def state_now() -> State:
    """What a test may not change. Takes 0.1 ms."""
    return {
        "environment variable": {name: os.environ[name] for name in os.environ.keys() - _SET_BY_IMPORTS},
        "signal handler": {number: _signal.getsignal(number) for number in _SIGNALS},
        **{kind: {name: read() for name, (read, _) in known.items()} for kind, known in _settings().items()},
        "child process": dict.fromkeys(_children(), "runs"),
        "shared memory": dict.fromkeys(_own_memory(), "is there"),
    }


def restore(before: State) -> list[str]:
    """Puts back what has changed since, but for processes and memory; a line for each change that no test may make."""
    lines = []
    for kind, values in state_now().items():
        known = before[kind]
        for name in known.keys() | values.keys() if values != known else ():
            old, new = known.get(name), values.get(name)
            match kind:
                case "child process" if new is None or _ends(name):
                    continue
                case "shared memory" if new is None:
                    continue
                case _ if old == new:
                    continue
                case "environment variable" if old is None:
                    del os.environ[name]
                case "environment variable":
                    os.environ[name] = old
                case "signal handler":
                    _signal.signal(name, old)
                case "of torch" | "of the process":
                    _settings()[kind][name][1](old)
            if kind != "of torch" and name not in _SET_BY_COMMANDS:
                lines.append(f"{kind} {name}: {old!r} became {new!r}")
    return lines


def _children() -> set[int]:
    """Those of the main thread, to which the system gives those of threads that have ended."""
    served = {
        multiprocessing.resource_tracker._resource_tracker._pid,  # type: ignore[attr-defined]
        multiprocessing.forkserver._forkserver._forkserver_pid,  # type: ignore[attr-defined]
    }
    own = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(map(int, own.read_text().split())) - served if own.exists() else set()


def _ends(child: int) -> bool:
    """Whether it ends soon, as one does that was killed, or serves torch's compiler or W&B to the end."""
    # Workers end with their loader's iterator, which the traceback of an expected error may hold.
    gc.collect()
    place, end_s = Path(f"/proc/{child}"), time.monotonic() + _ENDS_S
    while time.monotonic() < end_s:
        try:
            command = (place / "cmdline").read_text()
            if "compile_worker" in command or "wandb-core" in command:
                return True
            # Behind the name, in which anything may stand.
            if (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def _own_memory() -> list[str]:
    """What this process holds by name; other processes of the machine have memory there as well."""
    own = str(os.getpid())
    try:
        names = os.listdir("/dev/shm")
    except OSError:
        return []
    return [name for name in names if own in name.replace("-", "_").split("_")]
