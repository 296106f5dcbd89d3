"""What the current instruction of a frame calls, read from its source text.

A C function has no frame, so it shows only in its caller. Python 3.11 and later know the columns of an instruction;
older ones use the whole line.
"""

from __future__ import annotations

import linecache
import re
from itertools import islice
from types import BuiltinFunctionType, FrameType, FunctionType, ModuleType

from .lines import line_of

_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*\(")


def call_text(frame: FrameType) -> str:
    """The dotted name that is called, as written in the source; "" if none is found."""
    segment = _segment(frame)
    if segment is None:
        # Without columns: the first call in the line of a dotted name, which is the outermost one.
        found = _CALL.search(linecache.getline(frame.f_code.co_filename, line_of(frame), frame.f_globals))
        return found.group(1) if found else ""
    if not segment.endswith(")"):
        return ""
    depth = 0
    for at in range(len(segment) - 1, -1, -1):
        depth += {")": 1, "]": 1, "}": 1, "(": -1, "[": -1, "{": -1}.get(segment[at], 0)
        if depth == 0:
            found = re.search(r"[A-Za-z_][\w.]*$", segment[:at].rstrip())
            name = found.group(0) if found else ""
            # `f(x).item()` and `xs[0].item()` are methods of something unnamed.
            return name if segment[:at].rstrip() == name else "()." + re.sub(r"^.*\.", "", segment[:at].rstrip())
    return ""


def resolved(text: str, frame: FrameType) -> tuple[str, str] | None:
    """What a dotted name refers to. Only names of the module are looked up: reading the variables of a running
    function would change them."""
    root, *rest = text.split(".")
    found = frame.f_globals.get(root)
    if found is None:
        builtins = frame.f_globals.get("__builtins__")
        names = builtins if isinstance(builtins, dict) else getattr(builtins, "__dict__", {})
        return ("", rest[-1]) if rest else (("builtins", root) if root in names else None)
    if isinstance(found, ModuleType):
        return (".".join([found.__name__, *rest[:-1]]), rest[-1]) if rest else None
    # Other objects are left alone: an attribute of a lazy proxy could run code of the program.
    if isinstance(found, (type, FunctionType, BuiltinFunctionType)) and found.__module__:
        return found.__module__, ".".join([found.__qualname__, *rest])
    return ("", rest[-1]) if rest else None


def _segment(frame: FrameType) -> str | None:
    """Source text of the frame's current instruction; None where Python does not know its columns."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None or frame.f_lasti < 0:
        return None
    at = frame.f_lasti // 2
    line, end_line, column, end_column = next(islice(positions(), at, at + 1), (None,) * 4)
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, at, frame.f_globals) for at in range(line, end_line + 1)]
    if not all(lines):
        return None
    # Columns count bytes of UTF-8.
    encoded = [text.encode() for text in lines]
    encoded[-1] = encoded[-1][:end_column]
    encoded[0] = encoded[0][column:]
    return b"".join(encoded).decode(errors="replace")
