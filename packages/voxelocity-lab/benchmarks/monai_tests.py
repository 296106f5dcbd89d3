"""MONAI's own tests with this package's names in place of MONAI's.

    python benchmarks/monai_tests.py --tests DIR [--only NAME ...]

DIR is the folder above MONAI's `tests`, or any folder of its test files. Each file runs in a process of its own, in
which every public name of `voxelocity.monai` has taken the place of MONAI's before the file is imported; with
`--as-they-are` MONAI's names stay, which shows what the files themselves do here. Writes
`benchmarks/results/monai_tests.json`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import failures_of, head, parser_of, run_pytest, write_record

_PLUGIN = '''
"""Puts the public names of voxelocity.monai in place of MONAI's, wherever MONAI has bound them."""

import sys

import monai.apps, monai.data, monai.handlers, monai.inferers, monai.optimizers, monai.transforms, monai.utils

import voxelocity.monai


def _replace():
    originals = {}
    for name in voxelocity.monai.__all__:
        for module in list(sys.modules.values()):
            module_name = getattr(module, "__name__", "")
            if module_name.split(".")[0] == "monai" and name in vars(module):
                originals.setdefault(name, []).append(module)
    for name, modules in originals.items():
        ours = getattr(voxelocity.monai, name)
        for module in modules:
            # A class that checks for its own kind, as a handler does, keeps doing so: ours are subclasses.
            setattr(module, name, ours)
    return originals


_replace()
'''


@dataclass(frozen=True)
class Outcome:
    """The outcome of the tests of one file.

    Attributes:
        file: its path below the folder of tests.
        passed: tests.
        failed: tests, with those that could not begin.
        skipped: tests.
        failures: names of those that failed.
    """

    file: str
    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...]


def run_file(path: Path, root: Path, *, as_they_are: bool) -> Outcome:
    """The outcome of the tests in one file, run in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "voxelocity_in_place.py").write_text("" if as_they_are else _PLUGIN)
        parts = [folder, str(root), *(part for part in sys.path if part)]
        options = ("-p", "voxelocity_in_place", "--rootdir", str(root), "-c", os.devnull, "-p", "no:cacheprovider")
        cases, _ = run_pytest(str(path), *options, cwd=root, environ={"PYTHONPATH": os.pathsep.join(parts)})
    name = str(path.relative_to(root))
    if cases is None:
        return Outcome(name, 0, 1, 0, ("the process ended without a report",))
    failures = [case for case in cases if failures_of(case)]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return Outcome(
        file=name,
        passed=len(cases) - len(failures) - len(skipped),
        failed=len(failures),
        skipped=len(skipped),
        failures=tuple(str(case.get("name")) for case in failures),
    )


def main() -> int:
    """Runs the files, prints a line for each, writes the JSON; 1 where a test failed."""
    parser = parser_of(__doc__)
    parser.add_argument("--tests", type=Path, required=True, help="folder of MONAI's test files")
    parser.add_argument("--only", nargs="*", default=[], help="run files with one of these words in their paths")
    parser.add_argument("--as-they-are", action="store_true", help="leave MONAI's names in place; writes no file")
    arguments = parser.parse_args()
    root = arguments.tests.resolve()
    files = [
        path
        for path in sorted(root.rglob("test_*.py"))
        if path.name != "test_utils.py"
        and (not arguments.only or any(word in str(path.relative_to(root)) for word in arguments.only))
    ]
    if not files:
        parser.error(f"no file test_*.py below {root}; name the folder of MONAI's tests")
    record, outcomes = head("monai_tests", "--tests DIR"), []
    for path in files:
        outcome = run_file(path, root, as_they_are=arguments.as_they_are)
        outcomes.append(outcome)
        counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
        print(f"{outcome.file}: {counts}", flush=True)
        for failure in outcome.failures:
            print(f"    {failure}")
    if not arguments.as_they_are:
        write_record(record | {"files": [asdict(outcome) for outcome in outcomes]}, "monai_tests")
    return int(any(outcome.failed for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
