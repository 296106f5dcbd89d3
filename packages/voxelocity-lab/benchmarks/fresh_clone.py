"""What a new user gets: a fresh clone, `make demo SEEDS=3`, `make test`, timed from nothing.

    python benchmarks/fresh_clone.py

Writes `benchmarks/results/fresh_clone.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import ROOT, head, real_data, write_record


def measure(work: Path) -> dict[str, Any]:
    """Clones the committed state into `work` and runs both commands there."""
    clone = work / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    record = head("fresh_clone") | {"command": "make demo SEEDS=3; make test"}
    for target, *options in (("demo", "SEEDS=3"), ("test",)):
        start = time.perf_counter()
        done = subprocess.run(
            ["make", target, *options],
            cwd=clone,
            env={**os.environ, "VOXELOCITY_DATA": str(real_data())},
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
    return record


def _seconds(command: list[str], folder: Path) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    argparse.ArgumentParser(description="Run the README's commands in a fresh clone and keep the figures.").parse_args()
    with tempfile.TemporaryDirectory() as work:
        write_record(measure(Path(work)), "fresh_clone")


if __name__ == "__main__":
    main()
