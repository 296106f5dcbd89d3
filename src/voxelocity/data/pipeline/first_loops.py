"""Compiled loops on a machine that never ran them: a thread compiles, and plain torch makes the batches meanwhile."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable

from voxelocity.core.jit import kernel_imports, was_compiled
from voxelocity.data.augment import AugmentConfig

# Numba keeps the interpreter busy, and each operation of a training step would wait for it (docs/log.md).
_SWITCH_S = 2e-4
_compiling = threading.Lock()
"""Held by the thread that compiles: of two, the second finds what the first has made, and the interval set back."""


class FirstLoops:
    """Says whether compiled loops can be called without waiting for Numba, and makes sure that they soon can.

    Safe to use from several threads. Where Numba has kept the loops on disk, they are ready at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_ready = False

    def are_ready(self, call_each: Callable[[], None]) -> bool:
        """Whether a call computes at once; if not, a thread calls each loop once, from the first question on.

        An error of `call_each` is not reported: the next call of the loops raises it again.
        """
        if self._is_ready:
            return True
        with self._lock:
            if self._thread is None and not _were_compiled():
                # Not a daemon: the process must not end in the middle of LLVM's work.
                self._thread = threading.Thread(target=_quietly, args=(call_each,), name="voxelocity-compile")
                self._thread.start()
            self._is_ready = self._thread is None or not self._thread.is_alive()
        return self._is_ready

    def close(self) -> None:
        """Waits for the thread, if there is one; none is started afterwards."""
        with self._lock:
            self._is_ready = True
        if self._thread is not None:
            self._thread.join()


def _quietly(call_each: Callable[[], None]) -> None:
    with _compiling:
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(min(before_s, _SWITCH_S))
        try:
            with contextlib.suppress(Exception):
                call_each()
        finally:
            sys.setswitchinterval(before_s)


def every_change(config: AugmentConfig) -> tuple[AugmentConfig, AugmentConfig]:
    """Configurations of samples that have each change which this one may make: one warped, one not."""
    made = config.model_dump()
    certain = {name: _certain(value) for name, value in made.items() if name.endswith("_probability")}
    warped = config.model_copy(update={**certain, "ramp_epochs": 0})
    return warped, warped.model_copy(update={"affine_probability": 0.0, "elastic_probability": 0.0})


def _certain(probability: float | tuple[float, ...]) -> float | tuple[float, ...]:
    if isinstance(probability, tuple):
        return tuple(float(one > 0.0) for one in probability)
    return float(probability > 0.0)


def _were_compiled() -> bool:
    with kernel_imports:
        from voxelocity.data.augment import numba_crop, numba_warp

    return was_compiled(numba_crop.crop) and was_compiled(numba_warp.warp)
