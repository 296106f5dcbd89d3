"""Whether our kernels are right on a device: the tests marked `gpu`, and compute-sanitizer around small shapes.

Three passes, side by side, as none is timed: the tests themselves; small tests with every new tensor filled with NaN,
so that an element that nobody writes is noticed; memcheck, racecheck and initcheck around small tests, with the kernels
of this package alone where the tool allows.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

from gpu.experiment import Experiment, Row, Setting
from harness import ROOT, failures_of, run_pytest

_PLUGINS = ("-p", "no:cacheprovider", "-p", "no:benchmark", "-p", "no:randomly")
# Each of these launches a handful of kernels on patches of a few thousand voxels.
_SMALL_AUGMENT = (
    "triton and (each_change or all_changes or large_patch or without_any_spread or memory_order or stay_on_the_device "
    "or wholly_beyond)"
)
# Not those that fill the device, run many steps, or capture graphs, which need the allocator's cache that is off here.
_LARGE = ("full", "to_the_31", "eight_threads", "Onnx", "TensorRt", "raph", "captur", "replay", "millions", "waits")
_SLOW = ("networks_with", "compiled_ahead", "singular")
_TESTS = Path("packages/voxelocity/tests")
_SMALL = " and ".join(f"not {word}" for word in (*_LARGE, *_SLOW))
_JIT = re.compile(r"^@triton\.jit.*?^def (\w+)\(", re.MULTILINE | re.DOTALL)
_REPORTED = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some small tests.

    Attributes:
        paths: files of the tests, from the root of the repository.
        words: that select among those marked `gpu`, as pytest's `-k`.
        has_many: whether a few of the parameters of each are enough.
    """

    name: str
    paths: tuple[str, ...]
    words: str
    has_many: bool = False


def small_parts() -> list[Part]:
    """Tests that launch our kernels on small shapes: the augmentation's, and those of the step and of inference."""
    marked = [path for folder in ("step", "infer") for path in gpu_tests(ROOT / _TESTS / folder)]
    others = [path for path in marked if "triton" in (ROOT / path).read_text()] or marked
    return [
        Part(
            name="augmentation",
            paths=(str(_TESTS / "data/augment/test_engines.py"),),
            words=_SMALL_AUGMENT,
        ),
        Part(name="step and inference", paths=tuple(others), words=_SMALL, has_many=True),
    ]


def gpu_tests(folder: Path) -> list[str]:
    """Files below a folder that have tests marked `gpu`, from the root of the repository."""
    paths = sorted(path for path in folder.rglob("test_*.py") if "mark.gpu" in path.read_text())
    return [str(path.relative_to(ROOT)) for path in paths]


def own_kernels(source: Path = ROOT / "packages" / "voxelocity" / "src") -> list[str]:
    """Names of the Triton kernels of this package; functions that they call begin with an underscore."""
    names = {name for path in source.rglob("*.py") for name in _JIT.findall(path.read_text())}
    return sorted(name for name in names if not name.startswith("_"))


def tests_by_module(cases: Sequence[ElementTree.Element]) -> list[Row]:
    """How many tests of each module passed, failed and were skipped."""
    rows: dict[str, Row] = {}
    for case in cases:
        name = case.get("classname", "")
        row = rows.setdefault(name, {"what": name, "passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0})
        row["failed" if failures_of(case) else "passed" if case.find("skipped") is None else "skipped"] += 1
        row["seconds"] += float(case.get("time", 0.0))
    return [rows[name] for name in sorted(rows)]


def failed_tests(cases: Sequence[ElementTree.Element], *, chars: int = 400) -> list[Row]:
    """The tests that failed, with the end of the message of each."""
    return [
        {"what": f"{case.get('classname')}::{case.get('name')}", "error": (found.get("message") or "")[:chars]}
        for case in cases
        for found in failures_of(case)[:1]
    ]


def run_tests(setting: Setting, name: str, arguments: Sequence[str], limit_s: float) -> None:
    """Tests in several processes, counted by module."""
    has_xdist = importlib.util.find_spec("xdist") is not None
    num_processes = 1 if setting.is_tiny else min(11, os.cpu_count() or 1)
    parallel = ["-n", str(num_processes), "--dist", "worksteal"] if has_xdist and num_processes > 1 else []
    environ = {} if setting.is_tiny else {"REQUIRE_GPU": "1"}
    begin_s = time.monotonic()
    try:
        cases, printed = run_pytest(
            *arguments, "-m", "gpu", "--tb=short", *_PLUGINS, *parallel, environ=environ, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        cases, printed = None, f"not done within {limit_s:.0f} s"
    if cases is None:
        setting.report(name, {"what": "failed", "error": printed[-500:]})
        return
    rows = tests_by_module(cases)
    total = {key: sum(row[key] for row in rows) for key in ("passed", "failed", "skipped")}
    setting.report(name, {"what": "all", **total, "seconds": time.monotonic() - begin_s})
    for row in failed_tests(cases):
        setting.report(f"{name}: failures", row)
    for row in rows:
        setting.report(name, row)
    if total["failed"]:
        print(printed[-20000:])


def sanitizer_command(tool: str, part: Part, log: Path, port: int) -> list[str]:
    """compute-sanitizer around the tests of a part.

    Errors that CUDA's calls return are not reported: torch probes for what a device has. A filter by kernel would hide
    from initcheck who has written.
    """
    command = [_sanitizer() or "compute-sanitizer", "--tool", tool, "--target-processes", "application-only"]
    command += ["--log-file", str(log), "--print-limit", "40", "--port", str(port), "--error-exitcode", "86"]
    if tool == "memcheck":
        command += ["--report-api-errors", "no"]
    if tool != "initcheck":
        command += [word for name in own_kernels() for word in ("--kernel-name", f"kernel_name={name}")]
    tests = [sys.executable, "-m", "pytest", *part.paths, "-m", "gpu", "-k", part.words, "-q", "--tb=line"]
    few = ("-p", "gpu.few") if part.has_many else ()
    return [*command, *tests, *_PLUGINS, "-p", "no:xdist", *few, "-o", "timeout=0"]


def _sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


@dataclass(frozen=True, kw_only=True)
class Running:
    """A tool that runs around a part, and where it and the tests write."""

    what: str
    process: subprocess.Popen[bytes]
    said: Path
    tests: Path


def start_sanitizers(work: Path, parts: Sequence[Part]) -> list[Running]:
    """Every tool around every part."""
    # Each tensor has its own allocation, so that an access beyond it, or before it is written, is seen as one.
    environ = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "REQUIRE_GPU": "1"}
    running = []
    for number, (tool, part) in enumerate(product(("memcheck", "racecheck", "initcheck"), parts)):
        said, tests = work / f"sanitizer{number}.log", work / f"tests{number}.log"
        command = sanitizer_command(tool, part, said, 49152 + 100 * number)
        with tests.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT, env=environ)
        running.append(Running(what=f"{tool}, {part.name}", process=process, said=said, tests=tests))
    return running


def report_sanitizers(setting: Setting, running: Sequence[Running], end_s: float) -> None:
    """A row for each tool when it has ended, which it must by `end_s` of the monotonic clock."""
    waiting = list(running)
    while waiting:
        for entry in [entry for entry in waiting if entry.process.poll() is not None or time.monotonic() > end_s]:
            waiting.remove(entry)
            entry.process.kill()
            entry.process.wait()
            said = entry.said.read_text(errors="replace") if entry.said.exists() else ""
            tests = entry.tests.read_text(errors="replace")
            setting.report("sanitizer", {"what": entry.what, **sanitizer_row(said, tests, entry.process.returncode)})
            print(f"--- {entry.what}\n{said[:6000]}\n{tests[-3000:]}", flush=True)
        time.sleep(0.2)


def sanitizer_row(said: str, tests: str, status: int | None) -> Row:
    """What a tool found: the number of errors by its summary, else of those printed, and the first of them.

    Args:
        said: the tool's log.
        tests: what pytest printed.
        status: with which the tool ended; negative where it was ended.
    """
    summary = _REPORTED.search(said)
    lines = [line.lstrip("= ") for line in said.splitlines()]
    found = [
        line for line in lines if re.match(r"(Invalid|Uninitialized|Error: |Warning: |Race reported|Misaligned)", line)
    ]
    row: Row = {
        "errors": int(summary[1]) if summary else len(found),
        "is_complete": summary is not None,
        "status": status,
    }
    last = [line for line in tests.splitlines() if line.strip()][-1:]
    row["tests"] = last[0].strip("= ")[:120] if last else ""
    return {**row, "first": "; ".join(found[:2])[:240]} if found else row


def run(setting: Setting) -> None:
    """All passes, or those named by the option `parts`, as `--set E10.parts=tests,sanitizer`."""
    end_s = time.monotonic() + setting.limit_s - 8.0
    asked = setting.options.get("parts", "tests,poisoned,sanitizer").split(",")
    parts, running = small_parts(), list[Running]()
    if "sanitizer" in asked and _sanitizer() is None:
        setting.report("sanitizer", {"what": "not installed"})
    elif "sanitizer" in asked and not setting.is_tiny:
        running = start_sanitizers(setting.work, parts)
    if "tests" in asked:
        files = [str(_TESTS / "metrics/test_dice.py")] if setting.is_tiny else gpu_tests(ROOT / "packages")
        run_tests(setting, "tests", files, 0.7 * setting.limit_s)
    if "poisoned" in asked and not setting.is_tiny:
        paths = [path for part in parts for path in part.paths]
        options = ["-k", _SMALL, "-p", "gpu.poison", "-W", "ignore:.*deterministic.*"]
        run_tests(setting, "poisoned", [*paths, *options], max(20.0, end_s - time.monotonic()))
    report_sanitizers(setting, running, end_s)


EXPERIMENT = Experiment(
    id="E10",
    question="Are the kernels right on a device: tests, memcheck, racecheck, initcheck, poisoned outputs?",
    seconds=170.0,
    run=run,
)
