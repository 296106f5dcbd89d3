"""What is measured in fresh Pythons: whole programs alone, and the memory of processes that hold the same cases.

Memory is measured from outside, in proportional set size (PSS). Each holder first imports everything, then opens all
cases; what it grew by is counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from voxelocity.core.volume import VolumeRef
from voxelocity_lab.bench.phantom import PhantomSet, make_phantoms
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.core.errors import VoxelocityError

_READY, _GO = "ready\n", "go\n"
_NUM_LINES_SHOWN = 10


def run_python(*words: object, environ: Mapping[str, str] | None = None) -> str:
    """What a fresh Python that finds this package prints to stdout; `environ` adds to the variables of this process.

    Raises:
        VoxelocityError: it failed; its last lines are in the text.
    """
    # As the command line sets it before it imports torch.
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": python_path(), **(environ or {})}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-_NUM_LINES_SHOWN:])
        raise VoxelocityError(
            f"bench: '{' '.join(map(str, words[:3]))} ...' ended with status {done.returncode}:\n{last}"
        )
    return done.stdout


def measure_growth_bytes(
    side: str, refs: Sequence[VolumeRef], *, num_processes: int, options: Mapping[str, Any]
) -> int:
    """Bytes by which the PSS of these processes together grows when each opens all cases and looks at every voxel.

    Args:
        side: "ours", "monai", or "drop-in": a CacheDataset of either package.
        refs: the cases.
        num_processes: holders at the same time.
        options: plain values for the holder: kind, num_classes, and cache (ours) or runtime_cache (MONAI's); of a
            drop-in the module that it is imported from.

    Raises:
        VoxelocityError: a holder failed; its errors have gone to stderr.
    """
    cases = [[ref.case_id, [str(path) for path in ref.images], str(ref.label)] for ref in refs]
    command = [sys.executable, "-c", f"from {__name__} import hold; hold()"]
    environ = {**os.environ, "PYTHONPATH": python_path()}
    holders = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)
        for _ in range(num_processes)
    ]
    try:
        _say(holders, json.dumps({"side": side, "refs": cases, **options}) + "\n")
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
            raise VoxelocityError(f"bench: a process that should hold cases ended with status {holder.wait()}")


def _pss_bytes(holder: subprocess.Popen[str]) -> int:
    process = psutil.Process(holder.pid)
    return sum(int(member.memory_full_info().pss) for member in (process, *process.children(recursive=True)))


def hold(commands: IO[str] = sys.stdin) -> None:
    """The holder's side of `measure_growth_bytes`: opens the cases it is given and waits to be ended."""
    task = json.loads(commands.readline())
    refs = [
        VolumeRef(case_id=case_id, images=tuple(map(Path, images)), label=Path(label))
        for case_id, images, label in task["refs"]
    ]
    held = {"ours": _open_ours, "monai": _open_monai, "drop-in": _open_drop_in}[task["side"]](refs, task)
    for expected in (_GO, ""):
        next(held)
        print(_READY, end="", flush=True)
        assert commands.readline() == expected


# Each yields twice: when all is imported, and when all cases are open.


def _open_ours(refs: Sequence[VolumeRef], task: Mapping[str, Any]) -> Iterator[None]:
    from voxelocity_lab.bench.streams import BenchCases

    yield
    cases = BenchCases(refs=refs, kind=task["kind"], num_classes=task["num_classes"]).open(task["cache"])
    volumes = [cases[index] for index in range(len(cases))]
    for volume in volumes:
        whole = volume.load()
        whole.image.max()
        assert whole.label is not None, "phantoms have labels"
        whole.label.max()
        del whole
    yield
    del volumes


def _open_monai(refs: Sequence[VolumeRef], task: Mapping[str, Any]) -> Iterator[None]:
    from voxelocity_lab.bench.peers import monai

    yield
    yield from _hold(monai.make_cached(refs, task["kind"], [], runtime_cache=task["runtime_cache"]))


def _open_drop_in(refs: Sequence[VolumeRef], task: Mapping[str, Any]) -> Iterator[None]:
    from voxelocity_lab.bench.peers import monai_scripts as scripts

    with tempfile.TemporaryDirectory() as place:
        small = PhantomSet(kind="ct", shape=(24, 24, 24), num_cases=1, spacing_mm=(1.4, 1.4, 2.4))
        # What a package loads or compiles when it first runs is not part of a cache.
        scripts.make_cached(task["module"], make_phantoms(small, Path(place)), scripts.preparing("spleen"))
    yield
    yield from _hold(scripts.make_cached(task["module"], refs, scripts.preparing("spleen")))


def _hold(dataset: Any) -> Iterator[None]:
    for item in dataset:
        for value in item.values():
            value.max()
    yield
