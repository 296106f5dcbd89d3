"""What our own watching costs: spans, `voxelocity monitor` and `voxelocity diagnose`, alternating with and without.

    python benchmarks/own_cost.py            # about 20 minutes
    python benchmarks/own_cost.py --quick    # a minute; for its structure, not for its figures

Writes `benchmarks/results/own_cost.json`. CPU seconds of the processes are used instead of wall time, as others may be
busy on the machine. Repeats that compare two things alternate between them, and ratios are taken pair by pair.
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import BENCHMARKS, VOXELOCITY, alternate, head, parser_of, write_record
from voxelocity_lab.bench.comparison import spread
from voxelocity_observe.spans import SpanRecorder, span


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much is measured."""

    # A span takes 0.3 to 3 µs: 20,000 of them are well above the 1 µs grain of the thread's CPU clock.
    num_spans: int = 20_000
    span_repeats: int = 15
    # 2,000 rounds of the CPU-bound program take about 20 s: forty samples at the default period.
    cpu_rounds: int = 2000
    training_rounds: int = 600
    # Diagnosing takes steps with and without its own parts, so the program must be long enough to be left alone again.
    diagnosed_rounds: int = 600
    pairs: int = 5


QUICK = Amount(num_spans=200, span_repeats=2, cpu_rounds=5, training_rounds=3, diagnosed_rounds=3, pairs=1)
PERIODS_S = (0.5, 0.1)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, least, most and number of repeats."""
    return {**spread(values), "n": len(values)}


def span_us(amount: Amount, *, listened: bool) -> dict[str, float]:
    """Microseconds of CPU that one span takes, without the empty loop around it."""

    def spans() -> float:
        begin_s = time.thread_time()
        for _ in range(amount.num_spans):
            with span("measured"):
                pass
        return time.thread_time() - begin_s

    def empty() -> float:
        begin_s = time.thread_time()
        for _ in range(amount.num_spans):
            pass
        return time.thread_time() - begin_s

    values = []
    with SpanRecorder(max_spans=amount.num_spans) if listened else contextlib.nullcontext() as recorder:
        for _ in range(amount.span_repeats):
            values.append(1e6 * (spans() - empty()) / amount.num_spans)
            if recorder is not None:
                recorder.take()
    return summary(values)


def watch_program(watcher: Callable[[Path], list[str]], program: str, rounds: int, pairs: int) -> dict[str, Any]:
    """What a watcher does to a program: its seconds with and without, and the CPU seconds of the watcher itself.

    Args:
        watcher: the words to put before the program's, given a folder for what it writes.
        program: of `watched_programs`.
        rounds: of the program.
        pairs: runs with and without, alternating.

    Returns:
        wall_share, cpu_share: what is added to the program's rounds, as a share of them without.
        own_cpu_s: CPU seconds of all processes but the program's.
        own_share: of the wall time that the program's rounds took.
        told_share: of one core while it watched, as the watcher itself reports it, without start-up and pages. Missing
            where it reports none.
        note: why there are no figures, or "".
    """
    words = [sys.executable, str(BENCHMARKS / "watched_programs.py"), program, "--rounds", str(rounds)]
    shares: list[float] = []

    def run_watched() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            ended = _run([*watcher(Path(folder) / "watched"), "--", *words])
            shares.extend(_measured_shares(Path(folder) / "watched"))
            return ended

    try:
        found = alternate({"with": run_watched, "without": lambda: _run(words)}, pairs)
    except subprocess.CalledProcessError:
        return {"note": f"could not be run: {' '.join(watcher(Path('FOLDER'))[1:4])}"}
    both = list(zip(found["with"], found["without"], strict=True))
    own = [with_it["tree_cpu_s"] - with_it["process_cpu_s"] for with_it, _ in both]
    figures = {
        "wall_share": [with_it["wall_s"] / without["wall_s"] - 1.0 for with_it, without in both],
        "cpu_share": [with_it["cpu_s"] / without["cpu_s"] - 1.0 for with_it, without in both],
        "own_cpu_s": own,
        "own_share": [cpu_s / with_it["wall_s"] for cpu_s, (with_it, _) in zip(own, both, strict=True)],
        **({"told_share": shares} if shares else {}),
    }
    return {"note": "", **{name: summary(values) for name, values in figures.items()}}


def _measured_shares(folder: Path) -> list[float]:
    """The cost that a monitor or a diagnosis has in its own record; none where it has none."""
    if (folder / "monitor.json").is_file():
        record = json.loads((folder / "monitor.json").read_text())
        return [record["own_cpu_s"] / record["seconds"]]
    if (folder / "diagnosis.json").is_file():
        share = json.loads((folder / "diagnosis.json").read_text())["own_share"]
        return [] if share is None else [share]
    return []


def _run(words: Sequence[str]) -> dict[str, float]:
    """What the program printed last, and the CPU seconds of the whole tree.

    Raises:
        CalledProcessError: it did not finish.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"wall_s"')]
    if not lines:
        raise subprocess.CalledProcessError(done.returncode, words)
    tree_cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {**json.loads(lines[-1]), "tree_cpu_s": tree_cpu_s}


def monitor(period_s: float) -> Callable[[Path], list[str]]:
    """`voxelocity monitor` without the page, which it makes when the program has ended."""
    command = [*VOXELOCITY, "monitor", "--period", str(period_s), "--no-page"]
    return lambda folder: [*command, "-o", str(folder)]


def diagnose(folder: Path) -> list[str]:
    """`voxelocity diagnose` as a user calls it."""
    return [*VOXELOCITY, "diagnose", "-o", str(folder)]


def measure(amount: Amount) -> dict[str, Any]:
    """All figures."""
    watchers = [
        {
            "watcher": f"voxelocity monitor --period {period_s:g}",
            "program": program,
            **watch_program(monitor(period_s), program, rounds, amount.pairs),
        }
        for program, rounds in (("cpu", amount.cpu_rounds), ("training", amount.training_rounds))
        for period_s in PERIODS_S
    ]
    diagnosed = watch_program(diagnose, "training", amount.diagnosed_rounds, amount.pairs)
    return {
        "span_off_us": span_us(amount, listened=False),
        "span_on_us": span_us(amount, listened=True),
        "watchers": [*watchers, {"watcher": "voxelocity diagnose", "program": "training", **diagnosed}],
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="Few repeats; writes nothing, prints the record.")
    parser.add_argument("--pairs", type=int, default=Amount.pairs, help="Runs with and without each watcher.")
    arguments = parser.parse_args()
    pairs = f"--pairs {arguments.pairs}" if arguments.pairs != Amount.pairs else ""
    amount = QUICK if arguments.quick else Amount(pairs=arguments.pairs)
    record = head("own_cost", pairs) | measure(amount)
    if not arguments.quick:
        write_record(record, "own_cost")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
