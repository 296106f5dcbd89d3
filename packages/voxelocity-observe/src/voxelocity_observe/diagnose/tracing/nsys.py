"""Nsight Systems around a watched program, where it is installed, and its kernels in DLProf's groups.

Nsight and torch.profiler both need CUPTI, which serves only one of them: a program under Nsight marks the steps to
capture with `recorder.profile.CaptureRange`, and torch.profiler does not run.
"""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from voxelocity_observe.core.errors import InputError
from voxelocity_observe.diagnose.facts import KernelGroup
from voxelocity_observe.diagnose.tracing.kernels import kernel_groups
from voxelocity_observe.diagnose.tracing.reading import DeviceWork, LaunchCall

MISSING = (
    "nsys is not on PATH: get Nsight Systems from https://developer.nvidia.com/nsight-systems, or install the package "
    "nsight-systems-cli from NVIDIA's CUDA repository"
)
_NAME = "nsys"
_SUFFIXES = (".nsys-rep", ".qdrep")
# The names before 2022.4 come second.
_GPU_REPORTS = ("cuda_gpu_trace", "gputrace")
_API_REPORTS = ("cuda_api_trace", "cudaapitrace")
_STATS_LIMIT_S = 600
# The second in WSL.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
USED = (
    "Nsight Systems records the kernels (nsys.nsys-rep), so there is no trace.json.gz; --no-nsys has torch.profiler "
    "record them"
)


def can_capture() -> bool:
    """Whether Nsight is installed and a driver of NVIDIA's, whose devices are not all hidden, is there."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    return not is_hidden and shutil.which("nsys") is not None and any(path.exists() for path in _DRIVERS)


def wrap(command: Sequence[str], folder: Path) -> list[str] | None:
    """The command under Nsight, which captures CUDA, NVTX and system calls of only the steps that the recorder marks.

    The program's stacks and its switches between cores are not sampled, so the host slows down little. Nsight
    ends with the program's exit status, passes on its output, and never ends it. None if nsys is not installed.

    Args:
        command: program and arguments.
        folder: for the report; an earlier one is replaced.
    """
    executable = shutil.which("nsys")
    if executable is None:
        return None
    # Nsight replaces "%p", "%h" and the like in the path.
    output = str(folder / _NAME).replace("%", "%%")
    return [
        executable,
        "profile",
        "--trace=cuda,nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--kill=none",
        "--force-overwrite=true",
        f"--output={output}",
        *command,
    ]


def report_groups(folder: Path) -> dict[str, KernelGroup]:
    """The kernels of the report in this folder in DLProf's groups, by Nsight's own tables. Needs nsys.

    Raises:
        InputError: the report is missing: the program never reached the steps to capture, or uses no CUDA device. Or
            `nsys stats` failed or did not print a table; the report itself can still be opened in Nsight.
    """
    report = next((path for suffix in _SUFFIXES if (path := folder / (_NAME + suffix)).exists()), None)
    if report is None:
        raise InputError(
            f"diagnosis.nsys: no report in '{folder}': the program ended before the steps to capture, or used no CUDA "
            "device; let it train a few dozen steps on a GPU"
        )
    calls: dict[int, LaunchCall] = {}
    for row in _table(report, _API_REPORTS):
        start = int(row["start (ns)"])
        calls[int(row["corrid"])] = LaunchCall(
            row["name"], (start, start + int(row["duration (ns)"])), row.get("tid", "")
        )
    device = []
    for row in _table(report, _GPU_REPORTS):
        start = int(row["start (ns)"])
        kind = "copy" if row["name"].startswith("[CUDA mem") else "kernel"
        span = (start, start + int(row["duration (ns)"]))
        device.append(DeviceWork(kind, row["name"], span, int(row["corrid"]), -1))
    return kernel_groups(device, calls)


def _table(report: Path, names: Sequence[str]) -> list[dict[str, str]]:
    """Rows of the first of these tables that this version of nsys knows; column names in lower case."""
    said = ""
    for name in names:
        command = ["nsys", "stats", "--quiet", "--force-export=true", "--report", name, "--format", "csv"]
        try:
            run = subprocess.run(
                [*command, "--output", "-", str(report)],
                capture_output=True,
                text=True,
                timeout=_STATS_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said = f"no answer within {_STATS_LIMIT_S} s"
            break
        lines = run.stdout.splitlines()
        begin = next((at for at, line in enumerate(lines) if line.lower().startswith("start (ns),")), None)
        if run.returncode == 0 and begin is not None:
            lines[begin] = lines[begin].lower()
            return [row for row in csv.DictReader(lines[begin:]) if row["duration (ns)"]]
        said = (run.stderr or run.stdout).strip().rpartition("\n")[2]
        if run.returncode == 0 and "does not contain" in run.stderr + run.stdout:
            return []
    raise InputError(
        f"diagnosis.nsys: 'nsys stats --report {names[0]}' on '{report}' failed: {said or 'it printed no table'}; "
        "open the report in Nsight Systems itself"
    )
