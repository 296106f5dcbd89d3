"""Does a diagnosis report a planted share of waiting correctly?

    python benchmarks/planted_wait.py [--shares 0.1 0.3 0.6] [--rounds 3] [--seconds 20] [--out benchmarks/results]

`slow_scripts/planted_wait.py` sleeps in its data set for a share of each step and measures with its own clock how long;
`voxelocity diagnose` watches it. Writes `planted_wait.json`; `benchmarks/tables.py` makes the table of docs/diagnose.md
from it.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import ROOT, VOXELOCITY, head, parser_of, write_record

SCRIPT = ROOT / "benchmarks" / "slow_scripts" / "planted_wait.py"
POINTS = 0.03
"""What is reported may differ by this much from what was waited."""
_EPOCH = re.compile(r"^epoch (\d+): waited ([0-9.]+) of ([0-9.]+) s$", re.MULTILINE)


def waited_share(text: str) -> float:
    """The share of its time that the script says it waited: the median of its epochs, without the first two.

    The last ones are not watched: the diagnosis runs steps on batches already there.

    Raises:
        ValueError: it reported fewer than three epochs.
    """
    told = [float(waited) / float(whole) for number, waited, whole in _EPOCH.findall(text) if int(number) > 2]
    if not told:
        raise ValueError("planted_wait.py reported fewer than three epochs; give the diagnosis more --seconds")
    return statistics.median(told)


def reported_share(told: Mapping[str, Any]) -> float:
    """Share of the watched time that a diagnosis calls waiting for data."""
    return next((float(one["share"]) for one in told["split"] if one["name"] == "waiting for data"), 0.0)


def watch(share: float, *, seconds: int, limit_s: float | None = None) -> tuple[float, float]:
    """The share that one run waited by its own clock, and the one that its diagnosis reports.

    Raises:
        CalledProcessError: the command failed.
        TimeoutExpired: it took longer than `limit_s`.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [*VOXELOCITY, "diagnose", "--json", "--seconds", str(seconds)]
        done = subprocess.run(
            [*command, "-o", str(Path(folder) / "diagnosis"), "--", sys.executable, str(SCRIPT)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "WAIT_SHARE": str(share)},
            timeout=limit_s,
        )
    return waited_share(done.stderr), reported_share(json.loads(done.stdout))


def record_of(share: float, rounds: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """All rounds of one planted share."""
    return {
        "planted": share,
        "waited": [waited for waited, _ in rounds],
        "reported": [reported for _, reported in rounds],
        "largest_difference": max(abs(reported - waited) for waited, reported in rounds),
        "n": len(rounds),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Status 1 where a report was further off than `POINTS`."""
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.1, 0.3, 0.6])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20, help="of counted steps")
    given = parser.parse_args(arguments)
    begin, records = head("planted_wait", f"--rounds {given.rounds} --seconds {given.seconds}"), []
    for share in given.shares:
        record = record_of(share, [watch(share, seconds=given.seconds) for _ in range(given.rounds)])
        print(
            f"planted {share:.0%}: waited {statistics.median(record['waited']):.1%}, "
            f"reported {statistics.median(record['reported']):.1%}, "
            f"largest difference {100 * record['largest_difference']:.1f} points in {record['n']} runs",
            flush=True,
        )
        records.append(record)
    write_record(begin | {"shares": records}, "planted_wait", out=given.out)
    return 0 if all(record["largest_difference"] <= POINTS for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
