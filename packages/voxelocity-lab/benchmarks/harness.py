"""What the scripts of this folder share: where they write, what stands at the head of a record, and their options."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

T = TypeVar("T")
BENCHMARKS = Path(__file__).resolve().parent
ROOT = BENCHMARKS.parents[2]
RESULTS = BENCHMARKS / "results"
VOXELOCITY = (sys.executable, "-m", "voxelocity")
"""The command, in a fresh process."""


def source_folders(root: Path = ROOT) -> list[Path]:
    """The `src` of each distribution in a checkout of today, or the one of a checkout from before there were three."""
    return [root / "src"] if (root / "src").is_dir() else sorted(root.glob("packages/*/src"))


# What is measured is this checkout, whatever is installed.
sys.path[:0] = [folder for folder in map(str, source_folders()) if folder not in sys.path]

from voxelocity_observe.core.environment import environment  # noqa: E402
from voxelocity_observe.core.whole_file import write_whole  # noqa: E402


def real_data() -> Path:
    """The folder of real scans: $VOXELOCITY_DATA, or the checkout's neighbor `shared/data`."""
    return Path(os.environ.get("VOXELOCITY_DATA", ROOT.parent / "shared" / "data"))


def parser_of(doc: str | None, *, out: bool = False) -> argparse.ArgumentParser:
    """A parser that shows the script's docstring; with `out`, it takes the folder of the record."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if out:
        parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    return parser


def head(name: str, options: str = "") -> dict[str, Any]:
    """The first entries of a record: the script `name`, the command that repeats it, the date and the machine.

    A checkout in which only results differ is that of its commit: several are measured one after another.
    """
    machine = environment()
    if machine["commit"] and not _differing():
        machine["commit"] = machine["commit"].removesuffix("-dirty")
    return {
        "benchmark": name,
        "command": f"python packages/voxelocity-lab/benchmarks/{name}.py {options}".rstrip(),
        "date": time.strftime("%Y-%m-%d"),
        "environment": machine,
        "load_average": os.getloadavg()[0],
    }


def _differing() -> list[str]:
    """The tracked files that differ from the commit, results left out."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "diff",
        "--name-only",
        "HEAD",
        "--",
        ".",
        f":(exclude){RESULTS.relative_to(ROOT)}",
    ]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def write_record(record: Mapping[str, Any], name: str, *, out: Path = RESULTS) -> Path:
    """Writes NAME.json, which names no home of the user who measured."""
    text = json.dumps(record, indent=1, allow_nan=False, ensure_ascii=False).replace(f"{Path.home()}/", "~/")
    return write_whole(out / f"{name}.json", f"{text}\n".encode())


def measure_each(
    name: str, doc: str | None, measurements: Mapping[str, Callable[[], Any]], facts: Mapping[str, Any] = {}
) -> Path:
    """The command line of a script whose measurements can be repeated one by one: NAME.json keeps the others.

    Args:
        name: of the script and of its record.
        doc: the script's docstring.
        measurements: what each finds, in the order in which the record has them.
        facts: that the record also gives.

    Returns:
        The record's path.
    """
    parser = parser_of(doc, out=True)
    parser.add_argument("--only", nargs="+", choices=list(measurements), default=list(measurements))
    options = parser.parse_args()
    asked = "" if options.only == list(measurements) else f"--only {shlex.join(options.only)}"
    record = {**head(name, asked), **facts}
    path: Path = options.out / f"{name}.json"
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"found": {}, "environment": {}}
    found: dict[str, Any] = before["found"]
    # Of those that stay: an earlier call may have been of another commit, on another machine.
    sources: dict[str, dict[str, str]] = {
        f"{fact}s": {**dict.fromkeys(found, before["environment"].get(fact, "")), **before.get(f"{fact}s", {})}
        for fact in ("commit", "cpu")
    }
    for wanted in options.only:
        found[wanted] = measurements[wanted]()
        for fact in ("commit", "cpu"):
            sources[f"{fact}s"][wanted] = record["environment"][fact]
        print(wanted, json.dumps(found[wanted]), flush=True)
        in_order = {measurement: found[measurement] for measurement in measurements if measurement in found}
        write_record({**record, **sources, "found": in_order}, name, out=options.out)
    return path


def alternate(sides: Mapping[str, Callable[[], T]], rounds: int, *, warm_ups: int = 0) -> dict[str, list[T]]:
    """What each side returns, a value a round; each round begins with another side, and the first ones do not count."""
    found: dict[str, list[T]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(-warm_ups, rounds):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            value = sides[name]()
            if number >= 0:
                found[name].append(value)
    return found


def differing_voxels(first: Path, second: Path) -> tuple[float, int, int]:
    """Of two label files: the share that differs of the voxels where either has foreground, and both numbers."""
    import nibabel as nib
    import numpy as np

    both = [np.asarray(nib.load(path).dataobj).squeeze() for path in (first, second)]
    different, num = int(np.count_nonzero(both[0] != both[1])), int(np.count_nonzero((both[0] > 0) | (both[1] > 0)))
    return different / max(num, 1), different, num


def sets_of(keys: Mapping[str, Any]) -> list[str]:
    """The `--set` options of these settings."""
    return [part for key, value in keys.items() for part in ("--set", f"{key}={json.dumps(value)}")]


def run_fresh(*words: object, environ: Mapping[str, str] = {}) -> dict[str, Any]:
    """The JSON that a fresh Python prints as its last line; its errors go to stderr.

    Raises:
        CalledProcessError: it failed.
    """
    command, environment = [sys.executable, *map(str, words)], {**os.environ, **environ}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def run_pytest(
    *arguments: str, cwd: Path = ROOT, environ: Mapping[str, str] | None = None, timeout: float | None = None
) -> tuple[list[ElementTree.Element] | None, str]:
    """The test cases that a fresh pytest reports, and what it printed; None where it wrote no report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *arguments, "-q", f"--junitxml={report}"]
        done = subprocess.run(
            [*command, f"--basetemp={folder}/pytest", "-o", "junit_family=xunit1"],
            cwd=cwd, env={**os.environ, **(environ or {})}, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else None
    return cases, done.stdout + done.stderr


def failures_of(case: ElementTree.Element) -> list[ElementTree.Element]:
    """What went wrong in a test case."""
    return [text for kind in ("failure", "error") for text in case.findall(kind)]
