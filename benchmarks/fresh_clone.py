"""What a new user gets: a fresh clone, `make demo SEEDS=3`, `make test`, timed from nothing.

    python benchmarks/fresh_clone.py

Writes `benchmarks/results/fresh_clone.json`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from voxelocity.observe import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def measure(work: Path) -> dict[str, Any]:
    """Clones the committed state into `work` and runs both commands there."""
    clone = work / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    data = os.environ.get("VOXELOCITY_DATA", str(ROOT.parent / "shared" / "data"))
    record: dict[str, Any] = {"command": "make demo SEEDS=3; make test", "date": time.strftime("%Y-%m-%d")}
    for target, *options in (("demo", "SEEDS=3"), ("test",)):
        start = time.perf_counter()
        done = subprocess.run(
            ["make", target, *options],
            cwd=clone,
            env={**os.environ, "VOXELOCITY_DATA": data},
            capture_output=True,
            text=True,
        )
        record[f"{target}_s"] = time.perf_counter() - start
        record[f"{target}_status"] = done.returncode
        record[f"{target}_last_lines"] = done.stdout.splitlines()[-3:]
        print(target, done.returncode, f"{record[f'{target}_s']:.0f} s", *record[f"{target}_last_lines"], sep="\n  ")
        if done.returncode != 0:
            print(done.stdout[-3000:], done.stderr[-3000:])
    record["second_install_s"] = _seconds(["make", "-q", ".venv/.installed"], clone)
    record["help_s"] = statistics.median(_seconds([".venv/bin/voxelocity", "--help"], clone) for _ in range(9))
    record["demo"] = json.loads((clone / "demo" / "demo.json").read_text())
    record["environment"] = environment()
    return record


def _seconds(command: list[str], folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        record = measure(Path(work))
    RESULTS.mkdir(exist_ok=True)
    # Reasons of the plan name folders of the user who measured.
    text = json.dumps(record, indent=1).replace(str(Path.home()), "~")
    (RESULTS / "fresh_clone.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
