"""Diagnoses programs with a planted fault and runs each against its cured form: verdict right, promise kept?

    python benchmarks/diagnose_scripts.py [--only NAME] [--rounds 3] [--seconds 60] [--out benchmarks/results]
    python benchmarks/diagnose_scripts.py --guides  # the same for idioms of MONAI's guides, with their changed lines
    python benchmarks/diagnose_scripts.py --quick  # one program, few steps, one short round: does everything work?
    python benchmarks/diagnose_scripts.py --checkpoints [--seconds 10]  # do saved files match an undiagnosed run?

The programs are in `held_out/`, written down with their expected verdicts in `expected.json` before any of them was
diagnosed; no rule may be changed for them. `CURED=1` switches a program to its cured form. Both forms print the seconds
of their epochs; the ratio of a round is that of two runs, alternating which is first. Needs VOXELOCITY_DATA. Writes
`diagnose_held_out.json`, one program after the other, so that results stay where a later one fails;
`benchmarks/tables.py` makes the table of docs/diagnose.md from it.

With --guides the programs are those of `guide_idioms/`, written as MONAI's acceleration guides write them; rules were
developed on them. The cured form is the same program with the text in `expected.json` replaced. With --cured it is
diagnosed, too: what was cured must no longer be named. Writes `diagnose_guides.json`.

With --checkpoints the scripts `slow_scripts/saving_*.py` run with and without a diagnosis, and the SHA-256 of what they
saved is compared. Writes `diagnose_checkpoints.json`. The Lightning script is left out where pytorch_lightning is not
installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness import BENCHMARKS, ROOT, VOXELOCITY, alternate, head, parser_of, real_data, write_record
from voxelocity_lab.bench.comparison import spread

SCRIPTS = BENCHMARKS / "slow_scripts"
HELD_OUT = BENCHMARKS / "held_out"
GUIDES = BENCHMARKS / "guide_idioms"
FACTOR = 1.5
"""A promise is kept where predicted and achieved speed-up differ by no more than this."""
_EPOCH = re.compile(r"^epoch (\d+): .*, ([0-9.]+) s$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One program.

    Attributes:
        name: of the file, without its ending.
        stands_for: what people do.
        needs: packages, as pip names them; the script is left out where one of them is missing.
        codes: findings any of which names the right cause.
        epochs: of a timed run, the first of which does not count; what is left is a multiple of the script's rhythm.
        cured_environ: variables that the cured form is run with.
        changes: text of the program to what stands in its cured form instead.
        at: text of the line that the finding is to name where that is not one of those changed.
        needs_gpu: whether the fault shows on a GPU only.
        folder: of the program.
    """

    name: str
    stands_for: str
    needs: tuple[str, ...]
    codes: tuple[str, ...] = ()
    epochs: int = 0
    cured_environ: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    at: str = ""
    needs_gpu: bool = False
    folder: Path = HELD_OUT

    @property
    def script(self) -> Path:
        """The program."""
        return self.folder / f"{self.name}.py"

    def missing(self) -> list[str]:
        """Those of `needs` that are not installed, or not in the version asked for."""
        wanted = [Requirement(text) for text in self.needs]
        missing = [str(need) for need in wanted if not need.specifier.contains(_version(need.name), prereleases=True)]
        return [*missing, "a GPU"] if self.needs_gpu and not _has_gpu() else missing

    def cured(self, folder: Path) -> Path:
        """The cured form of the program, written into a folder if it is another text.

        Raises:
            ValueError: the program does not contain what is to be changed, or more than once.
        """
        if not self.changes:
            return self.script
        text = self.script.read_text()
        for before, after in self.changes.items():
            if text.count(before) != 1:
                raise ValueError(
                    f"{self.script.name}: {before!r} stands in it {text.count(before)} times, not once; mend `changes` "
                    f"in {self.folder.name}/expected.json"
                )
            text = text.replace(before, after)
        folder.mkdir(parents=True, exist_ok=True)
        cured = folder / self.script.name
        cured.write_text(text)
        return cured

    def lines(self) -> set[int]:
        """Numbers of the lines that the finding may name."""
        text, wanted = self.script.read_text(), [self.at] if self.at else self.changes
        starts = [(text[: text.index(before)].count("\n") + 1, before.rstrip("\n")) for before in wanted]
        return {line for start, before in starts for line in range(start, start + before.count("\n") + 1)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _cases(folder: Path) -> tuple[Case, ...]:
    entries = json.loads((folder / "expected.json").read_text())
    return tuple(
        Case(**{**entry, "codes": tuple(entry["codes"]), "needs": tuple(entry["needs"]), "folder": folder})
        for entry in entries
    )


CASES = _cases(HELD_OUT)
GUIDE_CASES = _cases(GUIDES)

SAVING = (
    Case(name="saving_plain", stands_for="a plain loop with `torch.save`, and in `finally`", needs=("torch",)),
    Case(
        name="saving_monai",
        stands_for="MONAI's `CheckpointSaver`, which saves at an error, too",
        needs=("pytorch-ignite",),
    ),
    Case(
        name="saving_lightning",
        stands_for="Lightning's `ModelCheckpoint`, and a save in `on_exception`",
        needs=("pytorch-lightning",),
    ),
)
"""Scripts that save as they train."""
_OLD = b"a model of 300 epochs"


def diagnose(
    script: Path, folder: Path, *, seconds: int, environ: Mapping[str, str], cwd: Path | None = None
) -> dict[str, Any]:
    """What the diagnosis of a script says.

    Raises:
        CalledProcessError: the command failed.
    """
    command = [*VOXELOCITY, "diagnose", "--json", "--seconds", str(seconds), "-o", str(folder)]
    done = subprocess.run(
        [*command, "--", sys.executable, str(script)],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(environ),
        cwd=cwd,
    )
    # Paths of the script relative to the project.
    report: dict[str, Any] = json.loads(done.stdout.replace(f"{ROOT}{os.sep}", ""))
    return report


def judged(case: Case, report: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the diagnosis named the right cause, and what it promised.

    A problem of the machine (VX5xx: other programs on its cores) is not the script's fault unless expected.
    """
    found = [finding for finding in report["findings"] if finding["is_cause"]]
    causes = [finding for finding in found if not finding["code"].startswith("VX5") or finding["code"] in case.codes]
    first = causes[0] if causes else None
    return {
        "verdict": report["verdict"],
        "first": None
        if first is None
        else {key: first.get(key) for key in ("code", "title", "basis", "change", "where")},
        "causes": [finding["code"] for finding in causes],
        "machine": [finding["code"] for finding in found if finding not in causes],
        "is_right": first is not None and first["code"] in case.codes,
        "predicted": None if first is None else first["speedup"],
        "own_share": report["own_share"],
    }


def epoch_s(text: str) -> float:
    """Mean seconds of the epochs that a script has printed, without the first.

    Raises:
        ValueError: it printed fewer than two.
    """
    seconds = [float(took_s) for number, took_s in _EPOCH.findall(text) if int(number) > 1]
    if not seconds:
        raise ValueError("a script printed fewer than two lines of the form 'epoch 2: ..., 1.234 s'; give it EPOCHS=2")
    return statistics.fmean(seconds)


def time_both(script: Path, cured: Path, case: Case, *, rounds: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Seconds of an epoch of the script and of its cured form, alternating, and their ratios round by round."""

    def run(script: Path, added: Mapping[str, str]) -> float:
        done = subprocess.run(
            [sys.executable, str(script)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**environ, **added, "EPOCHS": str(case.epochs)},
        )
        return epoch_s(done.stdout)

    found = alternate({"slow": partial(run, script, {}), "cured": partial(run, cured, case.cured_environ)}, rounds)
    slow_s, cured_s = found["slow"], found["cured"]
    ratios = [slow / quick for slow, quick in zip(slow_s, cured_s, strict=True)]
    return {
        "epoch_s": statistics.median(slow_s),
        "cured_epoch_s": statistics.median(cured_s),
        "achieved": spread(ratios),
        "n": rounds,
    }


def compare_saved(
    saving: Case, folder: Path, *, scripts: Path, seconds: int, environ: Mapping[str, str]
) -> dict[str, Any]:
    """What a script saved under a diagnosis, next to what it saves without one up to the same step.

    Both runs work in the same folder, as some checkpoints hold its name. `last.pt` exists before; without a diagnosis
    it would be replaced.
    """
    script, work = scripts / f"{saving.name}.py", folder / saving.name
    saved = work / "checkpoints"
    saved.mkdir(parents=True)
    (saved / "last.pt").write_bytes(_OLD)
    # Older than the program.
    os.utime(saved / "last.pt", (1.0, 1.0))
    report = diagnose(script, folder / f"{saving.name}-diagnosis", seconds=seconds, environ=environ, cwd=work)
    diagnosed = sums(saved)
    shutil.rmtree(saved)
    steps = [step["phase"] for step in report["facts"]["steps"]]
    own = sum(phase in ("warm-up", "watched", "profiled") for phase in steps)
    subprocess.run([sys.executable, str(script)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   env={**environ, "STEPS": str(own)}, cwd=work)  # fmt: skip
    alone = sums(saved)
    last = diagnosed.pop("last.pt", None)
    # Where the script ends by itself, some write none.
    alone.pop("last.pt", None)
    return {
        "name": saving.name,
        "stands_for": saving.stands_for,
        "steps": own,
        "undone_steps": len(steps) - own,
        "num_checkpoints": len(diagnosed),
        "num_equal": sum(alone.get(name) == found for name, found in diagnosed.items()),
        "num_alone": len(alone),
        "is_last_untouched": last == hashlib.sha256(_OLD).hexdigest(),
        "refused": [Path(refused["path"]).name for refused in report["facts"]["refused_writes"]],
    }


def sums(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def is_unharmed(record: Mapping[str, Any]) -> bool:
    """Whether all that was saved under the diagnosis is what the script saves without it, and nothing is missing."""
    num = record["num_checkpoints"]
    return 0 < num == record["num_equal"] == record["num_alone"] and bool(record["is_last_untouched"])


def is_kept(predicted: float, achieved: float) -> bool:
    """Whether the achieved speedup is within a factor of 1.5 of the promised one."""
    return 1.0 / FACTOR <= predicted / achieved <= FACTOR


def measure(
    case: Case, folder: Path, *, seconds: int, rounds: int, environ: Mapping[str, str], with_cured: bool
) -> dict[str, Any]:
    """One program: its diagnosis, and how the promise was kept."""
    cured = case.cured(folder / "cured")
    record: dict[str, Any] = {"name": case.name, "stands_for": case.stands_for, "expected": list(case.codes)}
    record |= judged(case, diagnose(case.script, folder / case.name, seconds=seconds, environ=environ))
    if case.changes:
        where = (record["first"] or {}).get("where") or ""
        record["is_at_line"] = where.rpartition(":")[2] in {str(number) for number in case.lines()}
    if with_cured:
        added = {**environ, **case.cured_environ}
        after = judged(case, diagnose(cured, folder / f"{case.name}-cured", seconds=seconds, environ=added))
        record["after"] = {key: after[key] for key in ("verdict", "causes", "machine")}
        record["is_cured"] = not set(case.codes) & set(after["causes"])
    record |= time_both(case.script, cured, case, rounds=rounds, environ=environ)
    if record["predicted"] is not None:
        record["is_kept"] = is_kept(record["predicted"], record["achieved"]["median"])
    return record


def _line(record: Mapping[str, Any]) -> str:
    cause = record["first"]["code"] if record["first"] else "nothing"
    line = f"{record['name']}: {cause}, {'right' if record['is_right'] else 'WRONG'}"
    achieved, predicted = record["achieved"], record["predicted"]
    promise = "no promise" if predicted is None else f"predicted {predicted:.2f}"
    kept = {True: ", kept", False: ", NOT KEPT", None: ""}[record.get("is_kept")]
    return (
        f"{line}; {promise}, achieved {achieved['median']:.2f} ({achieved['low']:.2f} to {achieved['high']:.2f}){kept}"
    )


def write(record: Mapping[str, Any], name: str, *, out: Path, begin: Mapping[str, Any], order: Sequence[str]) -> None:
    """Puts one script's record into NAME.json, in place of an older one of its own. Each has its own commit."""
    path = out / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {"scripts": []}
    named = {**record, "commit": begin["environment"]["commit"]}
    others = {script["name"]: script for script in known["scripts"]} | {record["name"]: named}
    scripts = sorted(others.values(), key=lambda script: order.index(script["name"]) if script["name"] in order else 99)
    write_record({**begin, "scripts": scripts}, name, out=out)


def compare_checkpoints(out: Path, *, seconds: int, environ: Mapping[str, str]) -> int:
    """Status 1 where a file that was saved under a diagnosis differs."""
    is_good, begin = True, head("diagnose_scripts", f"--checkpoints --seconds {seconds}")
    with tempfile.TemporaryDirectory() as folder:
        for saving in SAVING:
            if missing := saving.missing():
                print(f"{saving.name}: left out; not installed: {', '.join(missing)}", flush=True)
                continue
            record = compare_saved(saving, Path(folder), scripts=SCRIPTS, seconds=seconds, environ=environ)
            print(
                f"{saving.name}: {record['num_equal']} of {record['num_checkpoints']} checkpoints equal, last.pt "
                f"{'untouched' if record['is_last_untouched'] else 'REPLACED'}, not written: {record['refused']}",
                flush=True,
            )
            is_good = is_good and is_unharmed(record)
            write(record, "diagnose_checkpoints", out=out, begin=begin, order=[case.name for case in SAVING])
    return 0 if is_good else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Status 1 where a verdict was wrong or a promise was not kept."""
    parser = parser_of(__doc__, out=True)
    names = [case.name for case in (*CASES, *GUIDE_CASES)]
    parser.add_argument("--only", action="append", choices=names, help="a program; may be given several times")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs of a program and its cured form")
    parser.add_argument("--seconds", type=int, default=60, help="of counted steps, at the most")
    parser.add_argument(
        "--guides", action="store_true", help="idioms of MONAI's guides instead of the held-out programs"
    )
    parser.add_argument("--cured", action="store_true", help="diagnose the cured form, too")
    parser.add_argument("--checkpoints", action="store_true", help="compare what the scripts saving_* write")
    parser.add_argument("--quick", action="store_true", help="the first program of --only, few steps and one round")
    given = parser.parse_args(arguments)
    environ = {**os.environ, "VOXELOCITY_DATA": str(real_data())}
    cases = GUIDE_CASES if given.guides else CASES
    chosen = [case for case in cases if given.only is None or case.name in given.only]
    rounds, seconds = given.rounds, given.seconds
    if given.quick:
        chosen, rounds, seconds = chosen[:1], 1, 2
    if given.checkpoints:
        return compare_checkpoints(given.out, seconds=seconds, environ=environ)
    begin = head("diagnose_scripts", f"{'--guides ' * given.guides}--rounds {rounds} --seconds {seconds}")
    stem = "diagnose_guides" if given.guides else "diagnose_held_out"
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            if missing := case.missing():
                print(f"{case.name}: left out; not installed: {', '.join(missing)}", flush=True)
                continue
            record = measure(
                case, Path(folder), seconds=seconds, rounds=rounds, environ=environ, with_cured=given.cured
            )
            print(_line(record), flush=True)
            is_good = is_good and record["is_right"] and record.get("is_kept", True)
            if not given.quick:
                write(record, stem, out=given.out, begin=begin, order=names)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
