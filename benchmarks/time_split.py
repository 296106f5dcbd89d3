"""Whether the split of time in the report of `voxelocity train` adds up to the time that its process took.

    python benchmarks/time_split.py --time-budget 2m

Trains on MSD's hippocampus twice, each in fresh processes as a user starts them: once to the end, and once stopped by
Ctrl-C after some steps and resumed. Writes `benchmarks/results/time_split.json`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import VOXELOCITY, head, parser_of, real_data, write_record
from voxelocity.core.time_parts import OTHER, TimeShare
from voxelocity.report import read_run
from voxelocity.report.summary import part_shares, stage_shares

_STOP_AFTER_WINDOWS = 10


def measure(dataset: Path, work: Path, options: Sequence[str], *, stop_after: int = 0) -> dict[str, Any]:
    """Trains in fresh processes and compares the split of the report with their wall time.

    Args:
        dataset: what to train on.
        work: an empty folder for the run.
        options: of `voxelocity train`.
        stop_after: stretches of steps after which Ctrl-C is sent and the run resumed; 0 trains in one go.
    """
    run = work / "run"
    wall_s = _timed(
        ["train", str(dataset), "-o", str(run), *options], stop_at=run if stop_after else None, after=stop_after
    )
    if stop_after:
        wall_s += _timed(["train", str(dataset), "-o", str(run), "--resume"])
    return {"resumed": stop_after > 0, **split_of(run, wall_s)}


def split_of(run: Path, wall_s: float) -> dict[str, Any]:
    """The split as the report has it, and how it compares with the seconds that the processes took."""
    facts = read_run(run)
    stages, parts = stage_shares(facts), part_shares(facts)
    return {
        "wall_s": wall_s,
        "reported_s": sum(part.seconds for part in stages),
        "gap_share": abs(wall_s - sum(part.seconds for part in stages)) / wall_s,
        "other_share": _other(stages),
        "other_share_of_steps": _other(parts),
        "num_sessions": len(facts.starts),
        "steps": facts.step,
        "stages": {part.name: part.seconds for part in stages},
        "parts_of_steps": {part.name: part.seconds for part in parts},
    }


def _other(shares: Sequence[TimeShare]) -> float:
    return sum(part.share for part in shares if part.name == OTHER)


def _timed(arguments: list[str], *, stop_at: Path | None = None, after: int = 0) -> float:
    """Seconds until the process has ended; it is sent Ctrl-C once the run at `stop_at` has `after` stretches."""
    start_s = time.perf_counter()
    process = subprocess.Popen([*VOXELOCITY, *arguments])
    while stop_at is not None and process.poll() is None:
        events = stop_at / "events.jsonl"
        if events.exists() and events.read_text().count('"event":"steps"') >= after:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.2)
    status = process.wait()
    expected = 0 if stop_at is None else 128 + signal.SIGINT
    assert status == expected, f"voxelocity {' '.join(arguments)} ended with status {status}, not {expected}"
    return time.perf_counter() - start_s


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--time-budget", default="2m")
    budget = parser.parse_args().time_budget
    record, runs = head("time_split", f"--time-budget {budget}"), []
    for stop_after in (0, _STOP_AFTER_WINDOWS):
        with tempfile.TemporaryDirectory() as work:
            options = ["--fold", "0", "--time-budget", budget]
            runs.append(measure(real_data() / "hippocampus", Path(work), options, stop_after=stop_after))
    write_record(record | {"load_average": os.getloadavg()[0], "runs": runs}, "time_split")
    print(json.dumps([{key: value for key, value in run.items() if "share" in key} for run in runs]))


if __name__ == "__main__":
    main()
