"""Diagnoses scripts with a planted fault and runs each against its cured form: verdict right, promise kept?

    python benchmarks/diagnose_scripts.py [--only NAME] [--rounds 3] [--seconds 60] [--out benchmarks/results]
    python benchmarks/diagnose_scripts.py --set held-out [...]
    python benchmarks/diagnose_scripts.py --quick  # one script, few steps, one short round: does everything work?
    python benchmarks/diagnose_scripts.py --checkpoints [--seconds 10]  # do saved files match an undiagnosed run?

The regression set is `slow_scripts/`, on which the rules were developed, so it does not show how right they are on
other programs. The held-out set is `held_out/`, written down with its expected verdicts in `expected.json` before any
of it was diagnosed; no rule may be changed for it. `CURED=1` switches a program to its cured form, in which the change
that the diagnosis proposed was made by hand. Both forms print the seconds of their epochs; the ratio of a round is that
of two runs, alternating which is first. Needs VOXELOCITY_DATA. Writes `diagnose_scripts.json` or
`diagnose_held_out.json`, one script after the other, so that results stay where a later one fails;
`benchmarks/tables.py` makes the tables of docs/diagnose.md from them.

With --checkpoints the scripts `saving_*.py` run with and without a diagnosis, and the SHA-256 of what they saved is
compared. Writes `diagnose_checkpoints.json`. The Lightning script is left out where pytorch_lightning is not installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
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
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from harness import ROOT, VOXELOCITY, head, parser_of, real_data, write_record
from voxelocity.bench.comparison import spread

SCRIPTS = ROOT / "benchmarks" / "slow_scripts"
HELD_OUT = ROOT / "benchmarks" / "held_out"
FACTOR = 1.5
"""A promise is kept where predicted and achieved speed-up differ by no more than this."""
# Causes that together save less than this do not hold a program back.
_WRONG_SHARE = 0.1
_EPOCH = re.compile(r"^epoch (\d+): .*, ([0-9.]+) s$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script.

    Attributes:
        name: of the file, without its ending.
        stands_for: what people do.
        codes: findings any of which names the right cause; empty where nothing is wrong, and there is no cured form.
        epochs: of a timed run, the first of which does not count; what is left is a multiple of the script's rhythm.
        cured_environ: variables that the cured form is run with.
        needs: packages, as pip names them; the script is left out where one of them is missing.
    """

    name: str
    stands_for: str
    codes: tuple[str, ...]
    epochs: int = 4
    cured_environ: Mapping[str, str] = field(default_factory=lambda: {"CURED": "1"})
    needs: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Those of `needs` that are not installed, or not in the version asked for."""
        wanted = [Requirement(one) for one in self.needs]
        return [str(one) for one in wanted if not one.specifier.contains(_version(one.name), prereleases=True)]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


CASES = (
    Case(name="decode_in_loop", stands_for="a plain loop that decodes each scan where it is used", codes=("VX116",)),
    Case(name="monai_tutorial", stands_for="MONAI's tutorials: `Dataset`, fixed transforms at each use",
         codes=("VX113",), epochs=5),
    Case(name="item_each_step", stands_for="`.item()` and a Dice of each class in every step", codes=("VX363",)),
    Case(name="huge_validation", stands_for="windows that overlap by three quarters, after each epoch",
         codes=("VX406",), epochs=3),
    Case(name="many_workers", stands_for="16 workers on 2 cores", codes=("VX104",), epochs=6,
         cured_environ={"CURED": "1", "OMP_WAIT_POLICY": "PASSIVE"}),
    Case(name="slow_collate", stands_for="a `collate_fn` that computes distance maps", codes=("VX111",)),
    Case(name="at_ceiling", stands_for="all in memory, the network computes all the time", codes=()),
)  # fmt: skip
HELD_OUT_CASES = tuple(
    Case(**{**one, "codes": tuple(one["codes"]), "needs": tuple(one["needs"])})
    for one in json.loads((HELD_OUT / "expected.json").read_text())
)
SETS = {
    "regression": (SCRIPTS, CASES, "diagnose_scripts"),
    "held-out": (HELD_OUT, HELD_OUT_CASES, "diagnose_held_out"),
}
"""Of each set: the folder of its scripts, what is expected of them, and the name of the record."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """One script that saves as it trains.

    Attributes:
        name: of the file, without its ending.
        stands_for: what people do.
        needs: module without which it cannot run.
    """

    name: str
    stands_for: str
    needs: str


SAVING = (
    Saving(name="saving_plain", stands_for="a plain loop with `torch.save`, and in `finally`", needs="torch"),
    Saving(name="saving_monai", stands_for="MONAI's `CheckpointSaver`, which saves at an error, too", needs="ignite"),
    Saving(name="saving_lightning", stands_for="Lightning's `ModelCheckpoint`, and a save in `on_exception`",
           needs="pytorch_lightning"),
)  # fmt: skip
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
    told: dict[str, Any] = json.loads(done.stdout.replace(f"{ROOT}{os.sep}", ""))
    return told


def judged(case: Case, told: Mapping[str, Any]) -> dict[str, Any]:
    """Whether the diagnosis named the right cause, and what it promised.

    A problem of the machine (VX5xx: other programs on its cores) is not the script's fault unless expected.
    """
    found = [one for one in told["findings"] if one["is_cause"]]
    causes = [one for one in found if not one["code"].startswith("VX5") or one["code"] in case.codes]
    saved = [(one["saves_s"] or 0.0) / one["of_s"] for one in causes]
    first = causes[0] if causes else None
    is_right = first is not None and first["code"] in case.codes if case.codes else sum(saved, start=0.0) < _WRONG_SHARE
    return {
        "verdict": told["verdict"],
        "first": None if first is None else {key: first[key] for key in ("code", "title", "basis", "change")},
        "causes": [one["code"] for one in causes],
        "machine": [one["code"] for one in found if one not in causes],
        "is_right": is_right,
        "predicted": first["speedup"] if first is not None and case.codes else None,
        "own_share": told["own_share"],
    }


def epoch_s(text: str) -> float:
    """Mean seconds of the epochs that a script has printed, without the first.

    Raises:
        ValueError: it printed fewer than two.
    """
    seconds = [float(one) for number, one in _EPOCH.findall(text) if int(number) > 1]
    if not seconds:
        raise ValueError("a script printed fewer than two lines of the form 'epoch 2: ..., 1.234 s'; give it EPOCHS=2")
    return statistics.fmean(seconds)


def timed(script: Path, case: Case, *, rounds: int, environ: Mapping[str, str]) -> dict[str, Any]:
    """Seconds of an epoch of the script and of its cured form, alternating, and their ratios round by round."""
    pair: tuple[tuple[Mapping[str, str], list[float]], ...] = (({}, []), (case.cured_environ, []))
    for number in range(rounds):
        for added, seconds in pair[:: 1 if number % 2 == 0 else -1]:
            done = subprocess.run(
                [sys.executable, str(script)],
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**environ, **added, "EPOCHS": str(case.epochs)},
            )
            seconds.append(epoch_s(done.stdout))
    slow_s, cured_s = pair[0][1], pair[1][1]
    ratios = [slow / quick for slow, quick in zip(slow_s, cured_s, strict=True)]
    return {
        "epoch_s": statistics.median(slow_s),
        "cured_epoch_s": statistics.median(cured_s),
        "achieved": spread(ratios),
        "n": rounds,
    }


def checkpoints(
    saving: Saving, folder: Path, *, scripts: Path, seconds: int, environ: Mapping[str, str]
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
    told = diagnose(script, folder / f"{saving.name}-diagnosis", seconds=seconds, environ=environ, cwd=work)
    diagnosed = sums(saved)
    shutil.rmtree(saved)
    steps = [one["phase"] for one in told["facts"]["steps"]]
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
        "refused": [Path(one["path"]).name for one in told["facts"]["refused_writes"]],
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
    case: Case, folder: Path, *, scripts: Path, seconds: int, rounds: int, environ: Mapping[str, str]
) -> dict[str, Any]:
    """One script: its diagnosis, and how the promise was kept."""
    script = scripts / f"{case.name}.py"
    record: dict[str, Any] = {"name": case.name, "stands_for": case.stands_for, "expected": list(case.codes)}
    record |= judged(case, diagnose(script, folder / case.name, seconds=seconds, environ=environ))
    if not case.codes:
        return record
    record |= timed(script, case, rounds=rounds, environ=environ)
    if record["predicted"] is not None:
        record["is_kept"] = is_kept(record["predicted"], record["achieved"]["median"])
    return record


def _line(record: Mapping[str, Any]) -> str:
    cause = record["first"]["code"] if record["first"] else "nothing"
    line = f"{record['name']}: {cause}, {'right' if record['is_right'] else 'WRONG'}"
    if "achieved" not in record:
        return line
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
    others = {one["name"]: one for one in known["scripts"]} | {record["name"]: named}
    scripts = sorted(others.values(), key=lambda one: order.index(one["name"]) if one["name"] in order else 99)
    write_record({**begin, "scripts": scripts}, name, out=out)


def compare_checkpoints(out: Path, *, seconds: int, environ: Mapping[str, str]) -> int:
    """Status 1 where a file that was saved under a diagnosis differs."""
    is_good, begin = True, head("diagnose_scripts", f"--checkpoints --seconds {seconds}")
    with tempfile.TemporaryDirectory() as folder:
        for saving in SAVING:
            if importlib.util.find_spec(saving.needs) is None:
                print(f"{saving.name}: left out, as {saving.needs} is not installed", flush=True)
                continue
            record = checkpoints(saving, Path(folder), scripts=SCRIPTS, seconds=seconds, environ=environ)
            print(
                f"{saving.name}: {record['num_equal']} of {record['num_checkpoints']} checkpoints equal, last.pt "
                f"{'untouched' if record['is_last_untouched'] else 'REPLACED'}, not written: {record['refused']}",
                flush=True,
            )
            is_good = is_good and is_unharmed(record)
            write(record, "diagnose_checkpoints", out=out, begin=begin, order=[one.name for one in SAVING])
    return 0 if is_good else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Status 1 where a verdict was wrong or a promise was not kept."""
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--set", choices=list(SETS), default="regression", help="which scripts")
    parser.add_argument("--only", action="append", help="a script of the set; may be given several times")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs of a script and its cured form")
    parser.add_argument("--seconds", type=int, default=60, help="of counted steps, at the most")
    parser.add_argument("--checkpoints", action="store_true", help="compare what the scripts saving_* write")
    parser.add_argument("--quick", action="store_true", help="the first script of --only, few steps and one round")
    given = parser.parse_args(arguments)
    environ = {**os.environ, "VOXELOCITY_DATA": str(real_data())}
    scripts, cases, name = SETS[given.set]
    if unknown := sorted({*(given.only or ())} - {case.name for case in cases}):
        parser.error(f"--only {unknown[0]}: the set {given.set} has {', '.join(case.name for case in cases)}")
    chosen = [case for case in cases if given.only is None or case.name in given.only]
    rounds, seconds = given.rounds, given.seconds
    if given.quick:
        chosen, rounds, seconds = chosen[:1], 1, 2
    if given.checkpoints:
        return compare_checkpoints(given.out, seconds=seconds, environ=environ)
    begin = head("diagnose_scripts", f"--set {given.set} --rounds {rounds} --seconds {seconds}")
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            if missing := case.missing():
                print(f"{case.name}: left out; not installed: {', '.join(missing)}", flush=True)
                continue
            record = measure(case, Path(folder), scripts=scripts, seconds=seconds, rounds=rounds, environ=environ)
            print(_line(record), flush=True)
            is_good = is_good and record["is_right"] and record.get("is_kept", True)
            if not given.quick:
                write(record, name, out=given.out, begin=begin, order=[case.name for case in cases])
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
