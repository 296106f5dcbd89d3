"""What an export needs besides the window engine works without torch, which takes seconds and memory to import."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import voxelocity as package
from voxelocity.infer import ModelSpec
from voxelocity.infer.runtimes.openvino import write_model
from voxelocity.infer.runtimes.program import to_onnx
from voxelocity.testing.runtime_contract import example_network, example_task

_RUN = """
import sys
from pathlib import Path
import numpy as np
from voxelocity.core.volume import Grid, Volume
from voxelocity.infer.models.spec import read_spec
from voxelocity.infer.runtimes.onnxruntime import OnnxSession
from voxelocity.infer.runtimes.openvino import OpenVinoSession

spec = read_spec(Path("model.json"))
scan = np.load("scan.npy")
volume = spec.preparation()(Volume(case_id="x", image=scan, label=None, grid=Grid.of(scan.shape[1:], np.eye(4))))
windows = volume.intensities()[None]
shape = spec.window.shape_voxel
assert windows.shape[2:] == shape, windows.shape
first = OnnxSession(Path("network.onnx"), num_threads=1)(windows)
second = OpenVinoSession(Path("network.xml"), num_threads=1, batch_size=1, shape_voxel=shape)(windows)
assert np.abs(first - second).max() < 1e-4, np.abs(first - second).max()
loaded = [name for name in ("torch", "monai", "safetensors") if name in sys.modules]
assert not loaded, f"loaded: {loaded}"
"""


def test_an_export_is_read_prepared_for_and_run_without_torch(tmp_path):
    task = example_task()
    content = to_onnx(example_network(), task)
    (tmp_path / "network.onnx").write_bytes(content)
    write_model(content, tmp_path / "network.xml")
    spec = ModelSpec.parse(
        {
            "network": {"name": "unet", "widths": [4, 8], "strides": [[2, 2, 2]]},
            "channels": ["T1", "T2"],
            "labels": {0: "background", 1: "a", 2: "b"},
            "prepare": {},
            "window": {"shape_voxel": list(task.shape_voxel)},
            "precision": {"compute": "float32"},
        }
    )
    (tmp_path / "model.json").write_text(spec.model_dump_json())
    np.save(tmp_path / "scan.npy", np.random.default_rng(0).standard_normal((2, *task.shape_voxel)).astype(np.float32))
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    ended = subprocess.run(
        [sys.executable, "-c", _RUN], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
