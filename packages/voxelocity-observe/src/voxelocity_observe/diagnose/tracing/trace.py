"""From the trace of torch.profiler to figures: groups of kernels as in DLProf, operators, waits, idle time."""

from __future__ import annotations

import linecache
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from voxelocity_observe.diagnose.facts import OperatorTime, ProfileFacts, SyncFacts
from voxelocity_observe.diagnose.recorder.lines import KNOWN_LIBRARIES
from voxelocity_observe.diagnose.tracing.kernels import kernel_groups, uses_tensor_cores
from voxelocity_observe.diagnose.tracing.reading import DeviceWork, LaunchCall, Mark, Operator, Trace, read_trace
from voxelocity_observe.diagnose.tracing.spans import Span, innermost, length, parents, union, within

_Call = TypeVar("_Call", Operator, Mark)

_NUM_OPERATORS = 40
_WAITING = re.compile(r"(cuda|hip)(Stream|Device|Event)Synchronize|cu(Stream|Ctx|Event)Synchronize")
_WAITING_COPY = re.compile(r"(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol|WithStream)?$")
_CALLS = {
    "aten::item": "Tensor.item",
    "aten::is_nonzero": "Tensor.__bool__",
    "aten::nonzero": "Tensor.nonzero",
    "aten::masked_select": "Tensor.masked_select",
    "aten::index": "indexing by a mask",
    "aten::to": "Tensor.to",
}
# First folder of a Python function's file: the trace gives the path below the folder of the packages.
_LIBRARIES = KNOWN_LIBRARIES | {"tqdm"}
_FUNCTION = re.compile(r"(?P<file>[^<].*)\((?P<line>\d+)\): ")


def profile_facts(path: Path | str) -> ProfileFacts:
    """What the trace at this path shows of its steps.

    Operators' times exclude the operators they call; their GPU time is that of the work they launched. Where the device
    ran nothing, its figures are 0 and `tensor_core_share` is None.

    Raises:
        InputError: the file cannot be read, is not a trace, or is truncated.
    """
    trace = read_trace(path)
    steps = union(trace.steps) or _whole(trace)
    num_steps = max(1, len(trace.steps))
    busy = within(union(work.span for work in trace.device), steps)
    waits = union(trace.waits.get(trace.step_thread, ()))
    occupied = within(union([*busy, *waits]), steps)
    kernels = [work for work in trace.device if work.kind == "kernel"]
    on_cores = sum(length([work.span]) for work in kernels if uses_tensor_cores(work.name))
    return ProfileFacts(
        groups=kernel_groups(trace.device, trace.calls),
        operators=_operators(trace),
        num_steps=num_steps,
        wall_ns=length(steps),
        gpu_busy_ns=length(busy),
        launch_bound_ns=length(steps) - length(occupied) if trace.device else 0,
        tensor_core_share=on_cores / max(1, length(work.span for work in kernels)) if kernels else None,
        syncs=_syncs(trace, steps, num_steps),
        trace=str(path),
    )


def _whole(trace: Trace) -> list[Span]:
    """From the first to the last operator, for a trace without marks of steps."""
    spans = [operator.span for operators in trace.operators.values() for operator in operators]
    spans += [work.span for work in trace.device]
    return [(min(start for start, _ in spans), max(stop for _, stop in spans))] if spans else []


def _operators(trace: Trace) -> list[OperatorTime]:
    """The costliest operators: by time on the device where there is one, on the host otherwise."""
    number: Counter[tuple[str, str]] = Counter()
    cpu_ns: Counter[tuple[str, str]] = Counter()
    gpu_ns: Counter[tuple[str, str]] = Counter()
    by_external: dict[int, tuple[str, str]] = {}
    for operators in trace.operators.values():
        ordered = _ordered(operators)
        spans = [operator.span for operator in ordered]
        for operator, parent in zip(ordered, parents(spans), strict=True):
            key = (operator.name, operator.shape)
            own = operator.span[1] - operator.span[0]
            number[key] += 1
            cpu_ns[key] += own
            if parent >= 0:
                cpu_ns[(ordered[parent].name, ordered[parent].shape)] -= own
            if operator.external >= 0:
                by_external[operator.external] = key
    for work, key in _launchers(trace, by_external):
        gpu_ns[key] += work.span[1] - work.span[0]
    cost = gpu_ns if gpu_ns else cpu_ns
    ranked = sorted(number, key=lambda key: (-cost[key], -cpu_ns[key], key))
    return [
        OperatorTime(name=key[0], number=number[key], cpu_ns=max(0, cpu_ns[key]), gpu_ns=gpu_ns[key], shape=key[1])
        for key in ranked[:_NUM_OPERATORS]
    ]


def _launchers(trace: Trace, by_external: dict[int, tuple[str, str]]) -> Iterable[tuple[DeviceWork, tuple[str, str]]]:
    """Each piece of device work with its operator: by id, or else the one around the call that launched it."""
    left: defaultdict[str, list[tuple[DeviceWork, LaunchCall]]] = defaultdict(list)
    for work in trace.device:
        call = trace.calls.get(work.correlation)
        if work.external in by_external:
            yield work, by_external[work.external]
        elif call is not None:
            left[call.thread].append((work, call))
    for thread, pairs in left.items():
        ordered = _ordered(trace.operators.get(thread, ()))
        found = innermost([operator.span for operator in ordered], [call.span[0] for _, call in pairs])
        for (work, _), at in zip(pairs, found, strict=True):
            if at >= 0:
                yield work, (ordered[at].name, ordered[at].shape)


def _ordered(calls: Iterable[_Call]) -> list[_Call]:
    return sorted(calls, key=lambda call: (call.span[0], -call.span[1]))


def _syncs(trace: Trace, steps: Sequence[Span], num_steps: int) -> list[SyncFacts]:
    """Calls of the runtime that wait, by threads that train, within the steps; the longest first."""
    count: Counter[tuple[str, str]] = Counter()
    waited: Counter[tuple[str, str]] = Counter()
    by_thread: defaultdict[str, list[LaunchCall]] = defaultdict(list)
    for call in trace.calls.values():
        if (_WAITING.match(call.name) or _WAITING_COPY.match(call.name)) and within([call.span], steps):
            by_thread[call.thread].append(call)
    for thread, calls in by_thread.items():
        names = (operator.name for operator in trace.operators.get(thread, ()))
        if thread != trace.step_thread and not any(name.startswith("autograd::engine") for name in names):
            continue
        for call, key in zip(calls, _causes(trace, thread, calls), strict=True):
            count[key] += 1
            waited[key] += call.span[1] - call.span[0]
    return [
        SyncFacts(
            call=call,
            where=where,
            line=_line(where),
            count=count[(call, where)],
            num_steps=num_steps,
            seconds=ns / 1e9,
            on_device=True,
        )
        for (call, where), ns in waited.most_common()
    ]


def _causes(trace: Trace, thread: str, calls: Sequence[LaunchCall]) -> list[tuple[str, str]]:
    """(call, where) of each call: the recorder's mark, or else the operator and the Python function around it."""
    times = [call.span[0] for call in calls]
    marks = _ordered(trace.syncs.get(thread, ()))
    functions = _ordered(trace.functions.get(thread, ()))
    operators = _ordered(trace.operators.get(thread, ()))
    of_operators, of_functions = ([item.span for item in items] for items in (operators, functions))
    above_operators, above_functions = parents(of_operators), parents(of_functions)
    found = []
    for call, mark, operator, function in zip(
        calls,
        innermost([mark.span for mark in marks], times),
        innermost(of_operators, times),
        innermost(of_functions, times),
        strict=True,
    ):
        if mark >= 0:
            name, _, where = marks[mark].name.partition(" at ")
            found.append((name, where))
            continue
        while operator >= 0 and above_operators[operator] >= 0 and operators[operator].name not in _CALLS:
            operator = above_operators[operator]
        name = operators[operator].name if operator >= 0 else call.name
        while function >= 0 and not _place(functions[function].name):
            function = above_functions[function]
        found.append((_CALLS.get(name, name), _place(functions[function].name) if function >= 0 else ""))
    return found


def _place(function: str) -> str:
    """ "file:line" of a Python function of the user's, as the trace names it; "" for a library's."""
    matched = _FUNCTION.match(function)
    if matched is None:
        return ""
    first = matched["file"].lstrip("/").partition("/")[0].removesuffix(".py")
    if first in _LIBRARIES or first in sys.stdlib_module_names or "/lib/python" in matched["file"]:
        return ""
    return f"{matched['file']}:{matched['line']}"


def _line(where: str) -> str:
    """The text of a "file:line", "" if this machine does not have it."""
    file, _, number = where.rpartition(":")
    return linecache.getline(file, int(number)).strip() if file and number.isdigit() else ""
