"""What a line calls is read from its source, as C functions have no frames."""

import linecache
import sys
from types import ModuleType

import pytest

from voxelocity.diagnosis.recorder.instruction import call_text, resolved


def called(frame):
    text = call_text(frame)
    return resolved(text, frame) if text else None


class Captured:
    """Stands for objects whose C functions are called; keeps what the calling line is seen to call."""

    def __init__(self):
        self.seen = None

    def look(self, *_):
        self.seen = called(sys._getframe(1))
        return self

    item = tolist = forward = __add__ = look

    def __getitem__(self, at):
        return self

    @property
    def layers(self):
        return self


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("time.sleep(9)", ("time", "sleep")),
        ("sleep(9)", ("time", "sleep")),
        ("zlib.decompress(\n    given)", ("zlib", "decompress")),
        ("given.item()", ("", "item")),
        ("(given + given).item()", ("", "item")),
        ("given[0].tolist()", ("", "tolist")),
        ("print(given)", ("builtins", "print")),
        ("given.layers.forward(given)", ("", "forward")),
        ("given + given", None),
    ],
)
def test_the_call_of_a_c_function_is_read_from_the_source_line(source, expected, monkeypatch):
    given = Captured()

    def sleep(*_):
        given.seen = called(sys._getframe(1))

    sleep.__module__, sleep.__qualname__ = "time", "sleep"
    time_module, zlib_module = ModuleType("time"), ModuleType("zlib")
    time_module.sleep = zlib_module.decompress = sleep
    filename = f"<source of {source}>"
    text = f"def run(given):\n    return {source}\n"
    monkeypatch.setitem(linecache.cache, filename, (len(text), None, text.splitlines(True), filename))
    names = {"time": time_module, "zlib": zlib_module, "sleep": sleep, "__builtins__": {"print": given.look}}
    exec(compile(text, filename, "exec"), names)
    names["run"](given)
    assert given.seen == expected
