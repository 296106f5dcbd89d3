"""Seconds of a window of each network in each runtime that runs here, and what `auto` would choose.

    python benchmarks/runtimes.py [--networks unet dynunet segresnet] [--edges 64 128] [--rounds 5] [--out FOLDER]

Every round calls each runtime once, starting with a different one; first calls do not count. Runtimes compute in the
format that `predict` would use on this machine, and in float32. Writes `results/runtimes_64.json` and so on.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness import alternate, head, parser_of, write_record
from voxelocity.infer.runtimes.auto import load_quickest, relative_difference, tolerance
from voxelocity.infer.runtimes.contract import Forward, RuntimeTask, in_one_line
from voxelocity.infer.runtimes.table import RUNTIMES
from voxelocity.step import NetworkConfig, PrecisionConfig, build_network, precision_on
from voxelocity_observe.core.clock import Stopwatch

_TWOS = [2, 2, 2]
NETWORKS: dict[str, dict[str, Any]] = {
    # As in MONAI's spleen tutorial.
    "unet": {"name": "unet", "widths": [16, 32, 64, 128, 256], "strides": [_TWOS] * 4, "num_res_units": 2},
    # nnU-Net's network for patches of 128 voxels, one level less, so that 64 voxels suffice too.
    "dynunet": {"name": "dynunet", "widths": [32, 64, 128, 256, 320], "strides": [_TWOS] * 4},
    # MONAI's defaults for brain tumors.
    "segresnet": {"name": "segresnet", "widths": [16, 32, 64, 128], "strides": [_TWOS] * 3},
}
# What building takes does not count here: the question is whether the quickest is found.
_MANY_WINDOWS = 10_000_000


@dataclass(frozen=True)
class Scenario:
    """A network, its window and its number format."""

    network: str
    edge_voxel: int
    compute: str
    batch_size: int
    rounds: int
    runtimes: tuple[str, ...]
    widths_divided_by: int = 1


def measure(scenario: Scenario) -> dict[str, Any]:
    """Figures of every runtime, and the choice of `auto`."""
    values = NETWORKS[scenario.network]
    widths = [width // scenario.widths_divided_by for width in values["widths"]]
    config = NetworkConfig.parse({**values, "widths": widths})
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    precision = PrecisionConfig.parse({"compute": scenario.compute, "channels_last": scenario.compute != "float32"})
    task = RuntimeTask(
        num_channels=1,
        shape_voxel=(scenario.edge_voxel,) * 3,
        batch_size=scenario.batch_size,
        device=device,
        precision=precision,
    )
    network = build_network(config, num_channels=1, num_classes=3, seed=0).eval()
    network = network.to(device, memory_format=precision.memory_format)  # type: ignore[call-overload]
    windows = torch.randn(task.batch_shape, generator=torch.Generator().manual_seed(1)).to(device)
    rows, loaded = _loaded(network, task, windows, scenario.runtimes)
    sides = {name: partial(_seconds_of, forward, windows) for name, forward in loaded.items()}
    for name, seconds in alternate(sides, scenario.rounds, warm_ups=1).items():
        per_window = [pass_s / scenario.batch_size for pass_s in seconds]
        rows[name] |= {
            "window_s": statistics.median(per_window),
            "low_s": min(per_window),
            "high_s": max(per_window),
            "rounds": len(per_window),
        }
    timed = {name: row["window_s"] for name, row in rows.items() if "window_s" in row and not row.get("refused")}
    chosen, notes = _chosen(network, task, scenario.runtimes)
    auto = {"choice": chosen, "over_best": timed[chosen] / min(timed.values()), "notes": notes}
    return {**asdict(scenario), "runtimes": rows, "auto": auto}


def _loaded(
    network: torch.nn.Module, task: RuntimeTask, windows: torch.Tensor, names: tuple[str, ...]
) -> tuple[dict[str, dict[str, Any]], dict[str, Forward]]:
    rows: dict[str, dict[str, Any]] = {}
    loaded: dict[str, Forward] = {}
    wanted: torch.Tensor | None = None
    for name in names:
        if why_not := RUNTIMES[name].why_not(task.device):
            rows[name] = {"why_not": why_not}
            continue
        watch = Stopwatch()
        try:
            loaded[name] = RUNTIMES[name].load(network, task)
            build_s = watch.elapsed_s
            with torch.no_grad():
                logits = loaded[name](windows).float().clone()
        # A runtime that fails is a row of the table.
        except Exception as error:
            loaded.pop(name, None)
            rows[name] = {"why_not": in_one_line(error)}
            continue
        wanted = logits if wanted is None else wanted
        found = relative_difference(logits, wanted)
        largest = float((logits - wanted).abs().max())
        rows[name] = {"build_s": build_s, "difference": largest, "relative_difference": found}
        rows[name]["refused"] = not found <= tolerance(task)
        print(f"  {name}: built in {build_s:.1f} s, logits differ by {found:.2g}", flush=True)
    return rows, loaded


def _seconds_of(forward: Forward, windows: torch.Tensor) -> float:
    watch = Stopwatch()
    with torch.no_grad():
        forward(windows)
    if windows.device.type == "cuda":
        torch.cuda.synchronize()
    return watch.elapsed_s


def _chosen(network: torch.nn.Module, task: RuntimeTask, names: tuple[str, ...]) -> tuple[str, list[str]]:
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        chosen = load_quickest(
            network,
            task,
            num_windows=_MANY_WINDOWS,
            folder=Path(folder),
            note=notes.append,
            runtimes={name: RUNTIMES[name] for name in names},
        )
    return chosen.runtime, notes


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--edges", nargs="+", type=int, default=[64, 128], help="voxels along a window's edge")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--runtimes", nargs="+", choices=list(RUNTIMES), default=list(RUNTIMES))
    parser.add_argument("--widths-divided-by", type=int, default=1, help="for a quick try")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    planned = precision_on(PrecisionConfig(compute="bfloat16"), device).compute
    names = tuple(name for name in RUNTIMES if name == "eager" or name in options.runtimes)
    for edge in options.edges:
        chosen = f"--networks {' '.join(options.networks)} --edges {edge} --runtimes {' '.join(names)}"
        narrower = f" --widths-divided-by {options.widths_divided_by}" if options.widths_divided_by > 1 else ""
        record = head("runtimes", f"{chosen} --rounds {options.rounds}{narrower}")
        rows = []
        for network in options.networks:
            for compute in dict.fromkeys((planned, "float32")):
                print(f"{network}, {edge} voxels, {compute}", flush=True)
                scenario = Scenario(
                    network, edge, compute, options.batch_size, options.rounds, names, options.widths_divided_by
                )
                rows.append(measure(scenario))
                print(f"  auto: {rows[-1]['auto']['choice']}, {rows[-1]['auto']['over_best']:.3f} of the best")
        record |= {"threads": torch.get_num_threads(), "rows": rows}
        print(write_record(record, f"runtimes_{edge}", out=options.out))


if __name__ == "__main__":
    main()
