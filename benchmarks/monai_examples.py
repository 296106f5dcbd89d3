"""The worked examples before and after their import lines change: scripts of `examples/monai`, alternating.

    python benchmarks/monai_examples.py [--rounds 3] [--epochs 10] [--out benchmarks/results]

On phantoms of the size of abdominal CTs and of BraTS, in the form of the Medical Segmentation Decathlon. Writes
`monai_examples.json`; `benchmarks/tables.py` makes the table of docs/monai.md from it.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import ROOT, head, parser_of, write_record
from voxelocity.bench.phantom import PhantomSet, make_phantoms
from voxelocity.observe import Stopwatch

SIDES = {"MONAI": "with_monai.py", "Voxelocity": "with_voxelocity.py"}
FIGURES = ("seconds_to_fill_cache", "seconds_per_epoch", "samples_per_s")
"""Of a script's summary: those that are timed."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One pair of scripts on one data set.

    Attributes:
        name: of the folder in `examples/monai`.
        cases: what it is trained on.
        options: of both scripts. The network is the tiny one: on two cores the full one takes a hundred times as long
            as its data, and would hide what is compared here.
    """

    name: str
    cases: PhantomSet
    options: tuple[str, ...]


EXAMPLES = (
    Example(
        name="spleen",
        cases=PhantomSet(kind="ct", shape=(512, 512, 120), num_cases=5, spacing_mm=(0.79, 0.79, 2.5), packed=True),
        options=("--small", "--patch", "96"),
    ),
    Example(
        name="brats",
        cases=PhantomSet(kind="mr", shape=(240, 240, 155), num_cases=5, packed=True),
        options=("--small", "--patch", "96"),
    ),
)
TINY = (
    Example(
        name="spleen",
        cases=PhantomSet(kind="ct", shape=(48, 52, 32), num_cases=5, spacing_mm=(1.4, 1.4, 2.4)),
        options=("--small", "--patch", "16", "--steps", "2"),
    ),
)


def write_data_set(example: Example, folder: Path) -> Path:
    """The phantoms with a `dataset.json`; returns the folder that holds it."""
    refs = make_phantoms(example.cases, folder)
    listing = [
        {"image": list(map(str, ref.images)) if len(ref.images) > 1 else str(ref.images[0]), "label": str(ref.label)}
        for ref in refs
    ]
    labels = {str(number): f"class {number}" for number in range(example.cases.num_classes)}
    (folder / "dataset.json").write_text(json.dumps({"labels": labels, "training": listing}))
    return folder


def run_script(example: Example, side: str, data: Path, out: Path, *, epochs: int) -> dict[str, Any]:
    """Its summary, its losses, and the seconds of the whole process.

    Raises:
        CalledProcessError: the script failed; its own messages are on stderr.
    """
    script = ROOT / "examples" / "monai" / example.name / SIDES[side]
    words = ["--data", str(data), "--out", str(out), "--epochs", str(epochs), *example.options]
    watch = Stopwatch()
    subprocess.run([sys.executable, str(script), *words], check=True, stdout=subprocess.DEVNULL)
    seconds = watch.elapsed_s
    summary = json.loads((out / "summary.json").read_text())
    losses = [float(row["loss"]) for row in csv.DictReader((out / "losses.csv").read_text().splitlines())]
    return {**summary, "seconds_in_all": seconds, "losses": losses}


def compared(example: Example, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians of both sides, and the largest difference of the losses of one round, as a share of their value."""
    pairs = [
        abs(one - other) / abs(other)
        for ours, theirs in zip(runs["Voxelocity"], runs["MONAI"], strict=True)
        for one, other in zip(ours["losses"], theirs["losses"], strict=True)
    ]
    return {
        "name": example.name,
        "cases": example.cases.words,
        "options": list(example.options),
        "num_steps": runs["MONAI"][0]["num_steps"],
        "n": len(runs["MONAI"]),
        "largest_difference": max(pairs),
        "sides": {
            side: {
                name: {"median": statistics.median(values), "low": min(values), "high": max(values)}
                for name in (*FIGURES, "seconds_in_all", "mean_dice")
                if (values := [run[name] for run in each])
            }
            for side, each in runs.items()
        },
    }


def measure(examples: Sequence[Example], work: Path, *, rounds: int, epochs: int) -> list[dict[str, Any]]:
    found = []
    for example in examples:
        data = write_data_set(example, work / example.name)
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
        for number in range(rounds):
            # Each round begins with the other side.
            for side in list(SIDES)[:: 1 if number % 2 == 0 else -1]:
                runs[side].append(run_script(example, side, data, work / f"{example.name}-{side}", epochs=epochs))
        found.append(compared(example, runs))
        print(json.dumps(found[-1], indent=1))
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="one tiny example: checks that it runs")
    options = parser.parse_args(words)
    examples = TINY if options.quick else EXAMPLES
    record = head("monai_examples", f"--rounds {options.rounds} --epochs {options.epochs}")
    with tempfile.TemporaryDirectory() as work:
        found = measure(examples, Path(work), rounds=options.rounds, epochs=options.epochs)
    record |= {"settings": [asdict(example) for example in examples], "examples": found}
    write_record(record, "monai_examples", out=options.out)


if __name__ == "__main__":
    main()
