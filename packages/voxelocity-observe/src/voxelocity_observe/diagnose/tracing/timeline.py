"""A trace of a whole recording for Perfetto, from the facts: steps, their parts and what lies between them.

Unlike the profiler's trace, which has operators and kernels of a few steps, this one shows minutes of a run.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from voxelocity_observe.core.time_parts import part_label
from voxelocity_observe.core.whole_file import write_whole
from voxelocity_observe.diagnose.facts import PARTS, Facts

_PROCESS = 1
_TRACKS = {"steps": 1, "parts of steps": 2, "validation, saving, epoch starts": 3, "parts of these": 4}


def write_timeline(facts: Facts, path: Path | str) -> Path:
    """Writes the run as slices on a track each for steps, their parts, and passes with theirs. Returns the path.

    Slices begin when the steps did. Within a step only the sums of its parts are known, so these are drawn in
    the order of a step. A path that ends in ".gz" is gzipped; Perfetto opens both.

    Raises:
        OutputError: the file cannot be written.
    """
    events = [*_names(facts), *_steps(facts), *_passes(facts)]
    content = json.dumps({"displayTimeUnit": "ms", "traceEvents": events}).encode()
    return write_whole(path, gzip.compress(content) if str(path).endswith(".gz") else content)


def _names(facts: Facts) -> Iterator[dict[str, Any]]:
    command = " ".join(facts.command) or "program"
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": command}}
    for name, track in _TRACKS.items():
        yield {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": track, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": _PROCESS, "tid": track, "args": {"sort_index": track}}


def _steps(facts: Facts) -> Iterator[dict[str, Any]]:
    for number, step in enumerate(facts.steps):
        arguments: dict[str, Any] = {"phase": step.phase}
        if step.num_images is not None:
            arguments["images"] = step.num_images
        name = f"step {number}" if step.phase == "watched" else f"step {number} ({step.phase})"
        yield _slice("steps", name, step.start_s, step.seconds, arguments)
        yield from _parts("parts of steps", step.start_s, step.parts)


def _passes(facts: Facts) -> Iterator[dict[str, Any]]:
    for interval in facts.passes:
        arguments = {"where": interval.where, "forward passes": interval.num_forwards}
        yield _slice("validation, saving, epoch starts", interval.kind, interval.start_s, interval.seconds, arguments)
        yield from _parts("parts of these", interval.start_s, interval.parts)


def _parts(track: str, start_s: float, parts: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    ordered = [*(part for part in PARTS if part in parts), *sorted(set(parts) - set(PARTS))]
    for part in ordered:
        if parts[part] > 0:
            yield _slice(track, part_label(part), start_s, parts[part], {})
            start_s += parts[part]


def _slice(track: str, name: str, start_s: float, seconds: float, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": track,
        "name": name,
        "pid": _PROCESS,
        "tid": _TRACKS[track],
        "ts": round(start_s * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        "args": dict(arguments),
    }
