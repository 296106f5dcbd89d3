"""Lets work proceed without waiting for Numba: plain code does it while a thread compiles."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_Made = TypeVar("_Made")
_MAY_REFUSE = True
# Numba keeps the interpreter busy, and each operation of a training step would wait for it (docs/log).
_SWITCH_S = 2e-4


def without_waiting(by_kernels: Callable[[], _Made], meanwhile: Callable[[], _Made]) -> _Made:
    """What `by_kernels` returns, or `meanwhile` if a kernel would have to be compiled first.

    A thread then compiles the kernel, once per machine, and later calls find it. Both functions run in the caller's
    thread; `meanwhile` writes again whatever `by_kernels` had written before it met the missing kernel.
    """
    if not _MAY_REFUSE:
        return by_kernels()
    _own.refuses = True
    try:
        return by_kernels()
    except _NotCompiledError:
        pass
    finally:
        _own.refuses = False
    return meanwhile()


class _NotCompiledError(Exception):
    """A kernel is not compiled for these arguments, and its caller does not wait for it."""


class _Own(threading.local):
    refuses = False


_own = _Own()


class _Behind:
    """The thread that compiles, while there is something to compile."""

    def __init__(self) -> None:
        self._changes = threading.Lock()
        self._compiles = threading.Lock()
        self._asked: dict[tuple[Any, Any], None] = {}
        self._failed: set[tuple[Any, Any]] = set()
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        return bool(self._asked)

    def ask(self, dispatcher: Any, types: Any) -> bool:
        """Begins to compile; False if that failed before, so that the caller compiles and gets the error."""
        with self._changes:
            if (dispatcher, types) in self._failed:
                return False
            self._asked[dispatcher, types] = None
            if self._thread is None:
                # Not a daemon: the process must not exit while LLVM is working.
                self._thread = threading.Thread(target=self._work, name="voxelocity-compile")
                self._thread.start()
        return True

    def hold(self) -> None:
        """Waits for the kernel that is being compiled, and starts no other before `release`."""
        self._compiles.acquire()
        self._changes.acquire()

    def release(self) -> None:
        self._changes.release()
        self._compiles.release()

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            dispatcher, types = asked
            with self._compiles:
                before_s = sys.getswitchinterval()
                sys.setswitchinterval(min(before_s, _SWITCH_S))
                try:
                    dispatcher.compile(types)
                except Exception:  # whatever it is: the next caller compiles itself and gets the error
                    self._failed.add(asked)
                finally:
                    sys.setswitchinterval(before_s)
            with self._changes:
                del self._asked[asked]

    def _next(self) -> tuple[Any, Any] | None:
        with self._changes:
            if self._asked and threading.main_thread().is_alive():
                return next(iter(self._asked))
            self._thread = None
            return None


_behind = _Behind()


def _in_child() -> None:
    # The child has no such thread; callers ask for its work again.
    global _behind
    _behind = _Behind()


if hasattr(os, "register_at_fork"):
    # Otherwise the child would inherit Numba's lock, held by a thread that it does not have.
    os.register_at_fork(
        before=lambda: _behind.hold(), after_in_parent=lambda: _behind.release(), after_in_child=_in_child
    )


def refuse_to_wait(dispatcher: Any) -> None:
    """Makes callers in `without_waiting` not wait for Numba: neither for this kernel nor for another kernel's lock.

    Replaces two private methods on the path from a call without a match to the compiler.
    """
    find, compile_now = dispatcher._compile_for_args, dispatcher._compiler.compile

    def found(*arguments: Any) -> Any:
        if _own.refuses and _behind.is_busy:
            raise _NotCompiledError
        return find(*arguments)

    def compiled(types: Any, return_type: Any) -> Any:
        # Reached only if the disk has none.
        if _own.refuses and _behind.ask(dispatcher, types):
            raise _NotCompiledError
        return compile_now(types, return_type)

    dispatcher._compile_for_args, dispatcher._compiler.compile = found, compiled
