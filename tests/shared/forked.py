"""Python processes that begin with torch, MONAI and Voxelocity imported: forked from one that has done nothing else.

Each saves about four seconds of CPU time. How a user's command starts is tested with processes of its own in `cli`.
"""

import atexit
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from shared.limits import HANGS_S

_CONTEXT = multiprocessing.get_context("forkserver")
_IMPORTED = [
    "voxelocity.cli.train",
    "voxelocity.training.loop",
    "voxelocity.data.augment.native_engine",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "voxelocity.monai",
]


def with_imports() -> multiprocessing.context.ForkServerContext:
    """Starts processes that share no memory with this one, as "spawn" does, but have imported much already."""
    _CONTEXT.set_forkserver_preload(_IMPORTED)
    # What OpenMP reads when torch is imported; other settings take effect in each process.
    with mock.patch.dict(os.environ, OMP_NUM_THREADS="1"):
        forkserver.ensure_running()
    return _CONTEXT


class ForkedPython:
    """A process that runs `script`, with the methods of `subprocess.Popen` that tests call, and pipes to it."""

    def __init__(self, script: str, arguments: Sequence[object] = (), environment: Mapping[str, str] = os.environ):
        (read_in, write_in), (read_out, write_out), (read_err, write_err) = (_CONTEXT.Pipe(duplex=False) for _ in "123")
        theirs = (read_in, write_out, write_err)
        words = list(map(str, arguments))
        self._process = with_imports().Process(target=_run, args=(script, words, dict(environment), *theirs))
        self._process.start()
        for end in theirs:
            end.close()
        self.stdin = _file(write_in, "w")
        self.stdout = _file(read_out, "r")
        self.stderr = _file(read_err, "r")

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked Python", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it prints until it ends; its input ends first."""
        texts: dict[str, str] = {}
        if not self.stdin.closed:
            self.stdin.close()

        def read(name: str) -> None:
            file = getattr(self, name)
            texts[name] = "" if file.closed else file.read()
            file.close()

        threads = [threading.Thread(target=read, args=(name,), daemon=True) for name in ("stdout", "stderr")]
        for thread in threads:
            thread.start()
        self.wait(timeout)
        for thread in threads:
            thread.join(timeout)
        return texts["stdout"], texts["stderr"]


def run_python(
    script: str, arguments: Sequence[object] = (), environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """The end of a forked process, which is waited for."""
    process = ForkedPython(script, arguments, environment)
    try:
        out, err = process.communicate(timeout=HANGS_S)
        return subprocess.CompletedProcess(list(arguments), process.wait(), out, err)
    finally:
        process.kill()


def end_server() -> None:
    """Ends the process that the others are forked from, so that its CPU time counts as ours."""
    server: Any = forkserver._forkserver  # type: ignore[attr-defined]
    server._stop()


def _file(end: Connection, mode: str) -> Any:
    file = os.fdopen(os.dup(end.fileno()), mode)
    end.close()
    return file


def _run(script: str, arguments: list[str], environment: dict[str, str], *ends: Connection) -> None:
    # A rank collects garbage at its end, of which imported modules hold none.
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
        end.close()
    # Those of the server were opened on other files.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv = ["-c", *arguments]
    # It is not a worker of the test, whatever multiprocessing knows of it.
    vars(multiprocessing.process)["_parent_process"] = None
    try:
        exec(compile(script, "<string>", "exec"), {"__name__": "__main__"})
    except Exception:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()
