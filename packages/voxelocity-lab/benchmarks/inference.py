"""Everything of a prediction but the network: seconds and peak memory of ours, nnU-Net and MONAI on one large scan.

    python benchmarks/inference.py [--scenario organs_14] [--rounds 5]

A phantom CT with as many organs as the network has classes less one, or a real scan repeated to that size (in which
the stand-in network finds whatever has the intensity of an organ). Every prediction runs in a process of its own
(`inference_sides.py`), the sides alternating. Writes `benchmarks/results/inference_SCENARIO.json`, or
`inference.json` for all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from harness import BENCHMARKS, alternate, differing_voxels, head, parser_of, real_data, write_record
from inference_sides import FIRST, LOW, STEP
from voxelocity.core.volume import Grid
from voxelocity.data.decode import read_scan, write_scan

_SIDES = ("ours", "nnunet", "nnunet-torch", "monai")
_NOISE = 12.0
_TIMEOUT_S = 1_200.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A scan and a network. A side that fails in the first round is not run again."""

    shape: tuple[int, int, int] = (512, 512, 300)
    spacing_mm: tuple[float, float, float] = (0.8, 0.8, 1.0)
    num_classes: int = 14
    window: int = 128
    is_real: bool = False
    rounds: int = 5
    # What a process may allocate: more than this machine has free would have the system kill it, or others.
    memory_gib: float = 18.0


SCENARIOS: Mapping[str, Scenario] = {
    # An abdominal CT and the organs of a common data set.
    "organs_14": Scenario(),
    # Chest and abdomen with every organ of TotalSegmentator: where whole volumes of logits do not fit.
    "large_104": Scenario(shape=(512, 512, 600), num_classes=104, rounds=1),
    "large_14": Scenario(shape=(512, 512, 600), rounds=1),
    # The only full-size scan at hand, repeated to that size.
    "real_14": Scenario(shape=(512, 512, 600), rounds=1, is_real=True),
    "quick": Scenario(shape=(96, 80, 64), spacing_mm=(3.0, 3.0, 3.0), num_classes=5, window=64, rounds=1),
}


def main() -> None:
    """Runs the scenarios and writes the record."""
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), action="append")
    parser.add_argument("--rounds", type=int, default=0, help="in place of the scenario's")
    parser.add_argument("--sides", default=",".join(_SIDES))
    chosen = parser.parse_args()
    names = chosen.scenario or [name for name in SCENARIOS if name != "quick"]
    record = {**head("inference", " ".join(f"--scenario {name}" for name in chosen.scenario or ())), "scenarios": {}}
    for name in names:
        scenario = SCENARIOS[name]
        found = measure(scenario, chosen.rounds or scenario.rounds, chosen.sides.split(","))
        record["scenarios"][name] = {"scenario": asdict(scenario), "sides": found}
        _show(name, found)
    print(write_record(record, "_".join(["inference", *(chosen.scenario or ())]), out=chosen.out))


def measure(scenario: Scenario, rounds: int, sides: list[str]) -> dict[str, Any]:
    """The runs of each side, or the error with which it ended, and how far its labels agree with ours."""
    found: dict[str, Any] = {side: {"runs": []} for side in sides}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        scan = work / "scan.nii.gz"
        draw(scenario, scan)
        alternate({side: partial(_run, scenario, side, scan, work / side, found[side]) for side in sides}, rounds)
        for side in sides:
            if "error" not in found[side] and "ours" in sides:
                both = [work / name / scan.name for name in ("ours", side)]
                found[side]["agreement"] = 1.0 - differing_voxels(*both)[0]
    return found


def draw(scenario: Scenario, path: Path) -> None:
    """Writes the scan of a scenario."""
    grid = Grid.of(scenario.shape, np.diag([*scenario.spacing_mm, 1.0]))
    if scenario.is_real:
        (file,) = (real_data() / "vs_seg_001" / "imagesTr").iterdir()
        real, _ = read_scan(file)
        repeats = [-(-n // m) for n, m in zip(scenario.shape, real.shape[1:], strict=True)]
        voxels = np.tile(real[0], repeats)[tuple(slice(0, n) for n in scenario.shape)]
        write_scan(path, voxels, grid)
        return
    rng = np.random.default_rng(0)
    axes = [np.linspace(-1, 1, n, dtype=np.float32) for n in scenario.shape]
    across = (axes[0][:, None] / 0.85) ** 2 + (axes[1][None, :] / 0.6) ** 2 < 1.0
    classes = np.zeros(scenario.shape, dtype=np.uint8)
    for index in range(1, scenario.num_classes):
        center = rng.uniform((-0.5, -0.35, -0.85), (0.5, 0.35, 0.85)).astype(np.float32)
        radius = rng.uniform(0.06, 0.3, 3).astype(np.float32)
        box = tuple(
            slice(*np.searchsorted(axis, (c - r, c + r))) for axis, c, r in zip(axes, center, radius, strict=True)
        )
        inside = sum(
            (((axis[part] - c) / r) ** 2).reshape([-1 if a == b else 1 for b in range(3)])
            for a, (axis, part, c, r) in enumerate(zip(axes, box, center, radius, strict=True))
        )
        classes[box][inside < 1.0] = index
    values = np.concatenate([[LOW + 100.0], FIRST + STEP * np.arange(scenario.num_classes - 1)]).astype(np.float32)
    voxels = np.full(scenario.shape, -1000, dtype=np.int16)
    for z in range(scenario.shape[2]):
        noisy = values[classes[:, :, z]] + _NOISE * rng.standard_normal(scenario.shape[:2], dtype=np.float32)
        voxels[:, :, z][across] = noisy[across].astype(np.int16)
    write_scan(path, voxels, grid)


def _run(scenario: Scenario, side: str, scan: Path, out: Path, found: dict[str, Any]) -> None:
    if "error" in found:
        return
    command = [
        sys.executable, str(BENCHMARKS / "inference_sides.py"), side, str(scan), str(out), "--classes",
        str(scenario.num_classes), "--window", str(scenario.window), "--memory-gib", str(scenario.memory_gib),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        found["error"] = f"not finished after {_TIMEOUT_S:.0f} s"
        return
    try:
        record = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines() or ["nothing printed"]
        found["error"] = f"exit status {done.returncode}: {lines[-1][:200]}"
        return
    print(f"{side}: {record}", flush=True)
    if "error" in record:
        found["error"], found["peak_bytes"] = record["error"], record["peak_bytes"]
    else:
        found["runs"].append(record)


def _show(name: str, found: Mapping[str, Any]) -> None:
    for side, of_side in found.items():
        if not of_side["runs"]:
            print(f"{name:12} {side:13} {of_side.get('error')}")
            continue
        around = median(run["seconds"] - run["network_s"] for run in of_side["runs"])
        peak = max(run["peak_bytes"] for run in of_side["runs"])
        agreement = of_side.get("agreement", float("nan"))
        print(f"{name:12} {side:13} {around:8.2f} s  {peak / 2**30:6.2f} GiB  agreement {agreement:.5f}")


if __name__ == "__main__":
    main()
