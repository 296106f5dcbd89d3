"""`predict` with an export, without torch and with it: seconds and peak memory of the whole process, alternating.

    python benchmarks/without_torch.py [--rounds 7] [--shape 128 128 96] [--out FOLDER]

Both predict the same scan of noise with the same file, in processes of their own; the class maps are compared. Writes
`results/without_torch.json`.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch

from harness import head, parser_of, run_fresh, write_record
from voxelocity.infer import ModelSpec, save_model
from voxelocity.infer.export import export_run
from voxelocity.observe import Stopwatch
from voxelocity.step import build_network

_PREDICT = """
import json, sys
from pathlib import Path
from voxelocity.core.device import HOST
from voxelocity.infer import predict_files
from voxelocity.observe import peak_host_bytes

side, model, scan, out = sys.argv[1:]
if side == "torch":
    import torch
    device = torch.device("cpu")
else:
    device = HOST
predict_files(Path(model), [Path(scan)], Path(out), device=device, num_threads=2, overwrite=True)
assert ("torch" in sys.modules) == (side == "torch")
print(json.dumps({"peak_bytes": peak_host_bytes()}))
"""
_SIDES = ("arrays", "torch")


def make_export(folder: Path, to: str) -> Path:
    """A small untrained U-Net for three classes at 1.5 mm, exported."""
    values = {
        "network": {"name": "unet", "widths": [8, 16, 32], "strides": [[2, 2, 2]] * 2},
        "channels": ["CT"],
        "labels": {0: "background", 1: "a", 2: "b"},
        "prepare": {"spacing_mm": [1.5, 1.5, 1.5]},
        "window": {"shape_voxel": [64, 64, 64], "overlap": 0.5},
        "precision": {"compute": "float32"},
    }
    spec, run, out = ModelSpec.parse(values), folder / "run", folder / to
    run.mkdir(exist_ok=True)
    save_model(run, build_network(spec.network, num_channels=1, num_classes=3, seed=0), spec)
    device = torch.device("cpu")
    export_run(run, out, to=to, device=device, max_cases=0, num_threads=1, warn=lambda text: None)
    return out


def measure(folder: Path, to: str, *, shape: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    """Figures of both sides for one format; the first round does not count."""
    model, scan = make_export(folder, to), folder / "scan.nii.gz"
    voxels = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), scan)
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in _SIDES}
    for number in range(rounds + 1):
        for side in _SIDES[:: 1 if number % 2 else -1]:
            watch = Stopwatch()
            told = run_fresh("-c", _PREDICT, side, model, scan, folder / side)
            if number > 0:
                runs[side].append({"seconds": watch.elapsed_s, **told})
    found, wanted = (np.asarray(nib.load(folder / side / "scan.nii.gz").dataobj) for side in _SIDES)
    saved_s = [b["seconds"] - a["seconds"] for a, b in zip(runs["arrays"], runs["torch"], strict=True)]
    print(f"{to}: {statistics.median(saved_s):.2f} s less ({min(saved_s):.2f} to {max(saved_s):.2f})", flush=True)
    return {"runs": runs, "saved_s": saved_s, "agreement": float((found == wanted).mean())}


def main() -> None:
    parser = parser_of(__doc__, out=True)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--shape", type=int, nargs=3, default=[128, 128, 96], help="of the scan, in mm")
    options = parser.parse_args()
    x, y, z = options.shape
    record = head("without_torch", f"--rounds {options.rounds} --shape {x} {y} {z}")
    with tempfile.TemporaryDirectory() as folder:
        formats = {to: measure(Path(folder), to, shape=(x, y, z), rounds=options.rounds) for to in ("openvino", "onnx")}
    record |= {"shape": options.shape, "formats": formats}
    print(write_record(record, "without_torch", out=options.out))


if __name__ == "__main__":
    main()
