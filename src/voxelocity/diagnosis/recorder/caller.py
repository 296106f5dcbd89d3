"""Which line of the person's own code is running: the innermost frame that belongs to no library."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import CodeType
from typing import Any

_OWN_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple(
    {os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_known: dict[str, bool] = {}


def is_persons(filename: str) -> bool:
    """Whether this file is the person's own code: no library, no interpreter, nothing of the recorder."""
    answer = _known.get(filename)
    if answer is None:
        path = os.path.abspath(filename)
        answer = _known[filename] = not (
            filename.startswith("<")
            or path.startswith(_OWN_FOLDER)
            or path.startswith(_LIBRARIES)
            or f"{os.sep}site-packages{os.sep}" in path
            or f"{os.sep}dist-packages{os.sep}" in path
        )
    return answer


def where() -> tuple[str, str]:
    """("file:line", its source text) of the innermost line of the person's own code; two empty texts where none."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if is_persons(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}", source_line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return "", ""


def place() -> str:
    """The "file:line" of `where`."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if is_persons(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def source_line(filename: str, number: int) -> str:
    """The text of a line, stripped; empty where the file cannot be read."""
    import linecache

    return linecache.getline(filename, number).strip()


def where_defined(function: Any) -> tuple[str, str, bool]:
    """(qualified name, "file:line", whether it is the person's own) of a function or a callable object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
    # Of a callable object, such as one of a class with `__call__`, the code of that method.
    method = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None) or getattr(method, "__code__", None)
    if not isinstance(code, CodeType):
        return name, "", False
    return name, f"{code.co_filename}:{code.co_firstlineno}", is_persons(code.co_filename)
