"""What Ctrl-C does outside a training run, which has its own answer to it (`training.session`)."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

STATUS = 128 + signal.SIGINT
MESSAGE = "stopped by Ctrl-C"


@contextlib.contextmanager
def end_at_once() -> Iterator[None]:
    """Within the block, Ctrl-C ends the program immediately, which is right while nothing is being written.

    An exception would not work: imports of large libraries catch and drop whatever is raised in them. A program that
    ignores Ctrl-C continues to ignore it.
    """
    with _handled_by(_end, instead_of=signal.default_int_handler):
        yield


@contextlib.contextmanager
def is_raised() -> Iterator[None]:
    """Within the block, Ctrl-C raises KeyboardInterrupt again, so that half-written files are cleaned up."""
    with _handled_by(signal.default_int_handler, instead_of=_end):
        yield


@contextlib.contextmanager
def _handled_by(handler: Any, *, instead_of: Any) -> Iterator[None]:
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not instead_of:
        yield
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, instead_of)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, f"voxelocity: {MESSAGE}\n".encode())
    os._exit(STATUS)
