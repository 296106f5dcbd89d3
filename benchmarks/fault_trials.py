"""Counts the trials of `tests/faults`: kills, full disks, little memory, busy cores, harm, concurrency, hostile files.

    python benchmarks/fault_trials.py [--only kills fuzz] [--factor 3]

Each suite runs in a process of its own. A trial is clean where the command ended with the undisturbed result or with an
error in words. Writes `benchmarks/results/fault_trials.json`; status 1 where a trial was not clean.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from xml.etree import ElementTree

from harness import ROOT, failures_of, head, parser_of, run_pytest, write_record

FAULTS = ROOT / "tests" / "faults"


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


def read_suite(name: str, cases: Sequence[ElementTree.Element]) -> Suite:
    """The counts of a suite from the test cases of pytest's report."""
    num_trials, failed, skipped, failures, figures = 0, 0, [], [], {}
    for case in cases:
        properties = {one.attrib["name"]: one.attrib["value"] for one in case.iter("property")}
        counts = {name: int(properties.pop(name, 0)) for name in ("trials", "failed")}
        if properties:
            figures[case.attrib["name"]] = properties
        wrong = failures_of(case)
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
    cases, _ = run_pytest(str(FAULTS / f"test_{name}.py"), "-m", "nightly", environ={"VOXELOCITY_TRIALS": str(factor)})
    if cases is None:
        return Suite(name=name, num_trials=1, num_clean=0, skipped=(), failures=("pytest ended without a report",))
    return read_suite(name, cases)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each suite and writes the record."""
    names = sorted(path.stem.removeprefix("test_") for path in FAULTS.glob("test_*.py"))
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="suites; all if not given")
    parser.add_argument("--factor", type=float, default=1.0, help="how many times the usual number of trials")
    given = parser.parse_args(arguments)
    only = "" if given.only == names else f" --only {' '.join(given.only)}"
    record, suites = head("fault_trials", f"--factor {given.factor:g}{only}"), []
    for name in given.only:
        suite = run_suite(name, factor=given.factor)
        suites.append(suite)
        print(f"{name}: {suite.num_clean} of {suite.num_trials} clean, {len(suite.skipped)} skipped", flush=True)
        for failure in suite.failures:
            print(f"    {failure}")
    write_record(record | {"suites": [asdict(suite) for suite in suites]}, "fault_trials", out=given.out)
    return int(any(suite.num_clean < suite.num_trials for suite in suites))


if __name__ == "__main__":
    sys.exit(main())
