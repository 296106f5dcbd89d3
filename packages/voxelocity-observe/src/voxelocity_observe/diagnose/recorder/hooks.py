"""How the recorder gets into a program and out again: callbacks after imports, attributes that are replaced and
restored exactly, audit events, and torch.compile kept away from the recorder's own functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import CodeType, FunctionType, ModuleType
from typing import Any, Callable

Callback = Callable[[Any], None]
WhenImported = Callable[[str, Callback], None]
"""`Imports.when_imported`."""
Listener = Callable[[str, tuple[Any, ...]], None]

_ABSENT = object()
_listeners: list[Listener] = []
_hooks: list[Listener] = []
_skipped: set[str] = set()
"""Modules whose frames torch.compile skips; a forked process inherits this."""


class AttributePatches:
    """Replaces attributes; `restore` puts all of them back, last one first."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []
        self._keys: set[tuple[int, str]] = set()

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name`. What the owner itself had (not a base class) is remembered."""
        self._done.append((owner, name, vars(owner).get(name, _ABSENT), value))
        self._keys.add((id(owner), name))
        setattr(owner, name, value)

    def has(self, owner: Any, name: str) -> bool:
        """Whether `owner.name` has been replaced."""
        return (id(owner), name) in self._keys

    def restore(self) -> None:
        """Puts everything back, except where other code has replaced our value meanwhile: theirs stays."""
        self._keys.clear()
        while self._done:
            owner, name, before, ours = self._done.pop()
            if vars(owner).get(name, _ABSENT) is not ours:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


class Imports:
    """A finder that finds nothing itself: it lets the others find, and calls back when the module is there.

    It never imports anything. An import of any other module costs one dictionary lookup, about 0.1 microseconds.

    Args:
        on_error: called, within the `except` block, if a callback raised; the import continues.
    """

    def __init__(self, on_error: Callable[[str], None]) -> None:
        self._on_error = on_error
        self._waiting: dict[str, list[Callback]] = {}
        self._begun: set[str] = set()

    def when_imported(self, name: str, callback: Callback) -> None:
        """Calls `callback(module)` once the module is imported; at once if it already is."""
        module = sys.modules.get(name)
        if module is not None and not _is_initializing(module):
            self._call(callback, name, module)
            return
        if module is not None:
            self._begun.add(name)
        self._waiting.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Forgets all callbacks and restores the import system."""
        self._waiting.clear()
        self._begun.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        self.catch_up()
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None
            if finder is not self and find is not None:
                spec = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    loader: Any = _Calling(spec.loader, self)
                    spec.loader = loader
                return spec
        return None

    def catch_up(self) -> None:
        """Calls those who wait for a module whose import had begun when they asked, and has ended since.

        Such a module imports, before it is complete, the very module that causes its hook to be set. This check runs
        at each import, and should run once more when the program has finished importing.
        """
        for name in list(self._begun):
            module = sys.modules.get(name)
            if not _is_initializing(module):
                self._begun.discard(name)
                if module is not None:
                    self.call_waiting(module)

    def call_waiting(self, module: Any) -> None:
        """Calls those who wait for this module."""
        for callback in self._waiting.pop(module.__name__, []):
            self._call(callback, module.__name__, module)

    def _call(self, callback: Callback, name: str, module: Any) -> None:
        try:
            callback(module)
        except Exception:
            self._on_error(f"{name} could not be watched")


class _Calling:
    """Wraps the module's own loader: reports when it is done, and puts it back in its place."""

    def __init__(self, loader: Any, imports: Imports) -> None:
        self._loader = loader
        self._imports = imports

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imports.call_waiting(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _is_initializing(module: ModuleType | None) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def listen(listener: Listener) -> None:
    """Calls `listener(event, arguments)` at each of Python's audit events, in the thread that causes it; if the
    listener raises, the operation is refused.

    An audit hook cannot be removed, so there is one for all listeners. With none it returns at once (0.15 microseconds
    per event, measured).
    """
    if listener not in _listeners:
        _listeners.append(listener)
    if not _hooks:
        _hooks.append(_on_event)
        sys.addaudithook(_on_event)


def forget(listener: Listener) -> None:
    """Stops calling it. A second call does nothing."""
    if listener in _listeners:
        _listeners.remove(listener)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if _listeners:
        for listener in tuple(_listeners):
            listener(event, arguments)


def skip_own_frames(torch: Any) -> None:
    """Makes torch.compile skip frames of the recorder, but not the frames that they call.

    A function of the recorder inside a compiled function is traced through as if it were not there: each one checks
    `torch.compiler.is_dynamo_compiling()` first.
    """
    eval_frame = torch._C._dynamo.eval_frame
    skip = getattr(eval_frame, "skip_code", None)
    if skip is None:
        # Newer versions have one function for everything that can be done with a frame.
        try:
            strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
            skip = partial(_set_strategy, eval_frame.set_code_exec_strategy, strategy)
        except AttributeError:
            # torch.compile then looks at each of our frames once, and finds nothing to compile.
            return
    package = __name__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}.") and name not in _skipped and isinstance(module, ModuleType):
            _skipped.add(name)
            for code in _codes_of(module):
                skip(code)


def _set_strategy(set_code_exec_strategy: Any, strategy: Any, code: CodeType) -> None:
    set_code_exec_strategy(code, strategy)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    for value in list(vars(module).values()):
        members = list(vars(value).values()) if isinstance(value, type) else [value]
        for member in members:
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
