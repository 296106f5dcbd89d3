"""What a user installs: the wheels of the three distributions, each in a fresh environment and used there.

    python benchmarks/wheels.py [--out FOLDER]        (`make wheels`)

Torch is linked from the environment that runs this script, as users have it already; everything else is installed.
Each environment works outside the checkout: the observer diagnoses a script of plain PyTorch, the engine trains,
predicts and evaluates, the lab runs its demo. Fails if one of them does, or if the observer brought a library that only
the engine needs. Writes `benchmarks/results/wheels.json`: packages installed and seconds.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

from harness import ROOT, head, parser_of, write_record
from voxelocity_observe.core.environment import DISTRIBUTIONS

_INSTALL = ("-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"))
_NOT_THE_OBSERVERS = ("monai", "nibabel", "scipy")
_PLAIN_TRAINING = """
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        time.sleep(0.02)
        return torch.full((8,), float(index))

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-6)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
_DATA_SET = """
import json
from pathlib import Path
import nibabel
import numpy as np

root = Path("set")
for folder in ("imagesTr", "labelsTr"):
    (root / folder).mkdir(parents=True)
names = [f"case_{i}" for i in range(6)]
for i, name in enumerate(names):
    rng = np.random.default_rng(i)
    label = np.zeros((40, 40, 24), np.uint8)
    x, y, z = rng.integers(4, 12, 3)
    label[x : x + 16, y : y + 16, z : z + 8] = 1
    image = (label * 3 + rng.normal(size=label.shape)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(image, np.eye(4)), root / "imagesTr" / f"{name}.nii.gz")
    nibabel.save(nibabel.Nifti1Image(label, np.eye(4)), root / "labelsTr" / f"{name}.nii.gz")
(root / "dataset.json").write_text(json.dumps({
    "name": "Boxes", "modality": {"0": "MRI"}, "labels": {"0": "background", "1": "box"},
    "training": [{"image": f"imagesTr/{name}.nii.gz", "label": f"labelsTr/{name}.nii.gz"} for name in names],
}))
"""
_USES: dict[str, tuple[str, ...]] = {
    "voxelocity-observe": (
        "voxelocity --help",
        "voxelocity diagnose -- python train.py",
        f'python -c "import importlib.util as u; assert not [m for m in {_NOT_THE_OBSERVERS!r} if u.find_spec(m)]"',
    ),
    "voxelocity": (
        "voxelocity doctor",
        'python -c "from voxelocity.core.native import why_not; assert not why_not(), why_not()"',
        "python make_set.py",
        "voxelocity train set -o run --time-budget 20s",
        "voxelocity predict run set/imagesTr -o predictions",
        "voxelocity evaluate predictions set -o scores",
    ),
    "voxelocity-lab": ("voxelocity demo --help", "voxelocity recipe --help", "voxelocity demo -o demo"),
}


def measure(work: Path) -> dict[str, Any]:
    """The record: of each distribution, what its installation brought and how long it and each use took."""
    record: dict[str, Any] = head("wheels")
    wheels = work / "wheels"
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels)]
    _run([sys.executable, *build, *(str(ROOT / "packages" / name) for name in DISTRIBUTIONS)], work)
    for name in DISTRIBUTIONS:
        folder = work / name
        folder.mkdir()
        (folder / "train.py").write_text(_PLAIN_TRAINING)
        (folder / "make_set.py").write_text(_DATA_SET)
        python = _environment_with_torch(folder / "venv")
        before = _num_packages(python)
        wheel = next(wheels.glob(f"{name.replace('-', '_')}-[0-9]*.whl"))
        install_s = _run([str(python), *_INSTALL, "--find-links", str(wheels), str(wheel)], folder)
        record[name] = {
            "wheel_bytes": wheel.stat().st_size,
            "num_packages": _num_packages(python) - before,
            "install_s": install_s,
            "uses_s": {use: _run(["bash", "-c", use], folder) for use in _USES[name]},
        }
        print(name, record[name])
    return record


def _environment_with_torch(folder: Path) -> Path:
    """Its Python. Torch is linked; what torch needs is not, so installing brings it if the distribution needs it."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    for file in importlib.metadata.distribution("torch").files or ():
        source, target = Path(str(file.locate())), site / file
        if ".." not in file.parts and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
    _run([str(python), *_INSTALL, "torch", "numpy"], folder)
    return python


def _num_packages(python: Path) -> int:
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
    )
    return len(listed.stdout.splitlines())


def _run(command: list[str], folder: Path) -> float:
    """Seconds of a command with the folder's own environment first on PATH and nothing of the caller's Python."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["PATH"] = f"{folder / 'venv' / 'bin'}:{env['PATH']}"
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command}: exit status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return time.perf_counter() - start


def main() -> None:
    options = parser_of(__doc__, out=True).parse_args()
    with tempfile.TemporaryDirectory() as work:
        write_record(measure(Path(work)), "wheels", out=options.out)


if __name__ == "__main__":
    main()
