"""Counts the trials of `tests/faults`: kills, full disks, little memory, busy cores, harm, concurrency, hostile files.

    python benchmarks/fault_trials.py [--only kills fuzz] [--factor 3]

Each suite runs in a process of its own. A trial is clean where the command ended with the undisturbed result or with an
error in words. Writes `benchmarks/results/fault_trials.json`; status 1 where a trial was not clean.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

from voxelocity.core.whole_file import write_whole
from voxelocity.observe import environment

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "faults"
RESULT = ROOT / "benchmarks" / "results" / "fault_trials.json"


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The outcome of the trials of one suite.

    Attributes:
        name: kills, disk, ...
        num_trials: that were made.
        num_clean: of these.
        skipped: tests that this machine cannot make, with the reason.
        failures: what went wrong, in short.
        figures: what tests measured in addition, by test.
    """

    name: str
    num_trials: int
    num_clean: int
    skipped: tuple[str, ...]
    failures: tuple[str, ...]
    figures: dict[str, dict[str, str]] = field(default_factory=dict)


def read_suite(name: str, report: Path) -> Suite:
    """The counts of a suite from the XML that pytest wrote."""
    num_trials, failed, skipped, failures, figures = 0, 0, [], [], {}
    for case in ElementTree.parse(report).iter("testcase"):
        properties = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        counts = {name: int(properties.pop(name, 0)) for name in ("trials", "failed")}
        if properties:
            figures[case.attrib["name"]] = properties
        wrong = [one for kind in ("failure", "error") for one in case.findall(kind)]
        why = case.find("skipped")
        if why is not None:
            skipped.append(f"{case.get('name')}: {why.get('message')}")
            continue
        # A test that fails outside of a trial is a trial that failed.
        num_trials += max(counts["trials"], 1)
        failed += max(counts["failed"], bool(wrong))
        failures += [f"{case.get('name')}: {(one.get('message') or '')[:500]}" for one in wrong]
    return Suite(
        name=name,
        num_trials=num_trials,
        num_clean=num_trials - failed,
        skipped=tuple(skipped),
        failures=tuple(failures),
        figures=figures,
    )


def run_suite(name: str, *, factor: float) -> Suite:
    """The outcome of `tests/faults/test_<name>.py`."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(FAULTS / f"test_{name}.py"), "-q", "-m", "nightly"]
        subprocess.run(
            [*command, f"--junitxml={report}", f"--basetemp={folder}/pytest", "-o", "junit_family=xunit1"],
            cwd=ROOT, env={**os.environ, "VOXELOCITY_TRIALS": str(factor)}, stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if not report.exists():
            return Suite(name=name, num_trials=1, num_clean=0, skipped=(), failures=("pytest ended without a report",))
        return read_suite(name, report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each suite and writes the record."""
    names = sorted(path.stem.removeprefix("test_") for path in FAULTS.glob("test_*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="suites; all if not given")
    parser.add_argument("--factor", type=float, default=1.0, help="how many times the usual number of trials")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args(arguments)
    suites = []
    for name in given.only:
        suite = run_suite(name, factor=given.factor)
        suites.append(suite)
        print(f"{name}: {suite.num_clean} of {suite.num_trials} clean, {len(suite.skipped)} skipped", flush=True)
        for failure in suite.failures:
            print(f"    {failure}")
    only = "" if given.only == names else f" --only {' '.join(given.only)}"
    record = {
        "benchmark": "fault_trials",
        "command": f"python benchmarks/fault_trials.py --factor {given.factor:g}{only}",
        "date": date.today().isoformat(),
        "environment": environment(),
        "suites": [asdict(suite) for suite in suites],
    }
    write_whole(given.out, (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode())
    return int(any(suite.num_clean < suite.num_trials for suite in suites))


if __name__ == "__main__":
    sys.exit(main())
