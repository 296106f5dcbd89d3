"""What a new user gets: a fresh clone, its installation, the demo twice, first trainings and `make test`, timed.

    python benchmarks/fresh_clone.py [--only demo trainings]

Home folders begin empty. A training of 60 steps on the hippocampus runs three times in one that is empty, each time
followed by one in the same, now used: what the first ones take longer is what a new machine, or a job with a new home,
pays. Writes `benchmarks/results/fresh_clone.json`.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import ROOT, measure_each, real_data

_NUM_PAIRS = 3
_TRAIN = ("train", "{data}", "-o", "{out}", "--set", "train.steps=60")


class Clone:
    """A fresh clone of the committed state, and commands in it."""

    def __init__(self, work: Path) -> None:
        self.work, self.folder = work, work / "clone"
        self.program = str(self.folder / ".venv" / "bin" / "voxelocity")
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(self.folder)], check=True)

    def run(self, *command: str, home: str) -> dict[str, Any]:
        """Status, seconds of the clock and of cores, and the last lines of a command with this home folder."""
        folder = self.work / home
        folder.mkdir(exist_ok=True)
        environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "XDG_CACHE_HOME")}
        environ |= {"HOME": str(folder), "VOXELOCITY_DATA": str(real_data())}
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True)
        wall_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found = {"command": " ".join(command), "status": done.returncode, "wall_s": wall_s, "cpu_s": cpu_s}
        print(found, *done.stdout.splitlines()[-3:], sep="\n  ", flush=True)
        if done.returncode != 0:
            print(done.stdout[-3000:], done.stderr[-3000:])
        return found | {"last_lines": done.stdout.splitlines()[-3:]}

    def train(self, name: str, home: str) -> dict[str, Any]:
        """A training of 60 steps, with the second in which its first step was done, counted from the command."""
        out = self.work / name
        words = [word.format(data=real_data() / "hippocampus", out=out) for word in _TRAIN]
        found = self.run(self.program, *words, home=home)
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        first = next(event for event in events if event["event"] == "steps")
        first_step_s = first["time_s"] - first["seconds"] * (1 - 1 / first["num_steps"])
        return {key: found[key] for key in ("status", "wall_s", "cpu_s")} | {"first_step_s": first_step_s}


def measurements_in(work: Path) -> dict[str, Callable[[], Any]]:
    """What can be measured of a clone below `work`, which is made for the first of them."""

    @functools.cache
    def clone() -> Clone:
        return Clone(work)

    @functools.cache
    def install() -> dict[str, Any]:
        return clone().run("make", "loops", home="home")

    def demo() -> dict[str, Any]:
        install()
        runs = [clone().run("make", "demo", home="home") for _ in range(2)]
        return {
            "runs": runs,
            "verdict": json.loads((clone().folder / "demo" / "demo.json").read_text())["verdict"],
        }

    def trainings() -> dict[str, Any]:
        install()
        pairs = [
            {kind: clone().train(f"run_{number}_{kind}", f"home_{number}") for kind in ("empty", "used")}
            for number in range(_NUM_PAIRS)
        ]
        return {kind: [pair[kind] for pair in pairs] for kind in ("empty", "used")}

    def help_s() -> float:
        install()
        return float(statistics.median(clone().run(clone().program, "--help", home="home")["wall_s"] for _ in range(9)))

    def test() -> dict[str, Any]:
        return clone().run("make", "test", home="home")

    return {"install": install, "demo": demo, "trainings": trainings, "help_s": help_s, "test": test}


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        measure_each("fresh_clone", __doc__, measurements_in(Path(work)))


if __name__ == "__main__":
    main()
