"""Memory of processes that hold the same cases: measured from outside, in proportional set size (PSS).

Each holder is a process of its own that first imports everything, then opens all cases; what it grew by is counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from voxelocity.core.volume import VolumeRef

_READY, _GO = "ready\n", "go\n"


def grown_bytes(side: str, refs: Sequence[VolumeRef], *, num_processes: int, options: Mapping[str, Any]) -> int:
    """Bytes by which the PSS of these processes together grows when each opens all cases and looks at every voxel.

    Args:
        side: "ours", "monai", or "drop-in": a CacheDataset of either package.
        refs: the cases.
        num_processes: holders at the same time.
        options: plain values for the holder: kind, num_classes, and cache (ours) or runtime_cache (MONAI's); of a
            drop-in the module that it is imported from.

    Raises:
        RuntimeError: a holder failed; its errors have gone to stderr.
    """
    task = {
        "side": side,
        "refs": [[ref.case_id, [str(path) for path in ref.images], str(ref.label)] for ref in refs],
        **options,
    }
    source = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", f"from {__name__} import hold; hold()"]
    holders = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(num_processes)
    ]
    try:
        _say(holders, json.dumps(task) + "\n")
        before = sum(_pss_bytes(holder) for holder in holders)
        _say(holders, _GO)
        return sum(_pss_bytes(holder) for holder in holders) - before
    finally:
        for holder in holders:
            if holder.poll() is None:
                # A killed process does not end what it started.
                for child in psutil.Process(holder.pid).children(recursive=True):
                    child.kill()
                holder.kill()
            holder.communicate()


def _say(holders: Sequence[subprocess.Popen[str]], text: str) -> None:
    """Tells all of them to continue, and waits until all have."""
    for holder in holders:
        assert holder.stdin is not None
        holder.stdin.write(text)
        holder.stdin.flush()
    for holder in holders:
        assert holder.stdout is not None
        if holder.stdout.readline() != _READY:
            raise RuntimeError(f"bench: a process that should hold cases ended with status {holder.wait()}")


def _pss_bytes(holder: subprocess.Popen[str]) -> int:
    process = psutil.Process(holder.pid)
    return sum(int(each.memory_full_info().pss) for each in (process, *process.children(recursive=True)))


def hold(commands: IO[str] = sys.stdin, answers: IO[str] = sys.stdout) -> None:
    """The holder's side of `grown_bytes`: opens the cases it is given and waits to be ended."""
    task = json.loads(commands.readline())
    refs = [
        VolumeRef(case_id=case_id, images=tuple(map(Path, images)), label=Path(label))
        for case_id, images, label in task["refs"]
    ]
    opened = {"ours": _open_ours, "monai": _open_monai, "drop-in": _open_drop_in}
    held = opened[task["side"]](refs, task)
    next(held)
    answers.write(_READY)
    answers.flush()
    assert commands.readline() == _GO
    next(held)
    answers.write(_READY)
    answers.flush()
    commands.readline()


def _open_ours(refs: Sequence[VolumeRef], task: Mapping[str, Any]) -> Any:
    """Yields twice: when all is imported, and when all cases are open."""
    from voxelocity.bench import ours

    yield
    cases = ours.prepared_cases(refs, task["cache"], kind=task["kind"], num_classes=task["num_classes"])
    volumes = [cases[index] for index in range(len(cases))]
    for volume in volumes:
        whole = volume.load()
        whole.image.max()
        assert whole.label is not None, "phantoms have labels"
        whole.label.max()
        del whole
    yield
    del volumes


def _open_monai(refs: Sequence[VolumeRef], task: Mapping[str, Any]) -> Any:
    from voxelocity.bench import monai_side

    yield
    dataset = monai_side.cached(refs, task["kind"], [], runtime_cache=task["runtime_cache"])
    for item in dataset:
        item["image"].max(), item["label"].max()
    yield
    del dataset


def _open_drop_in(refs: Sequence[VolumeRef], task: Mapping[str, Any]) -> Any:
    from voxelocity.bench import drop_in_side

    yield from drop_in_side.open_cached(refs, task)
