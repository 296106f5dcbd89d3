"""Keeps torch.compile away from the recorder's own functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

_skipped: set[str] = set()
"""Modules whose frames torch.compile skips; a forked process inherits this."""


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
