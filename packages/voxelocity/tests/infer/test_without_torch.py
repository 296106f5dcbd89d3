"""An export is predicted without torch, whose import takes a second and 200 MiB, with equal results."""

import os
import subprocess
import sys

import nibabel as nib
import numpy as np
import pytest
import torch

from shared.limits import HANGS_S
from shared.small_predictor import small_spec
from voxelocity.core.requests.export import ExportRequest
from voxelocity.infer import WindowConfig, predict_files, runs_without_torch, save_model
from voxelocity.infer.export import export_run
from voxelocity.infer.probabilities import Probabilities
from voxelocity.infer.sinks import ClassMap
from voxelocity.infer.window import stitch_volumes
from voxelocity.step import build_network
from voxelocity.testing.window_reference import reference_probabilities
from voxelocity_observe.core.device import HOST
from voxelocity_observe.core.environment import python_path
from voxelocity_observe.core.errors import ScanError

CPU = torch.device("cpu")
_COMMAND = """
import sys
from voxelocity_observe.cli.main import main
try:
    main()
finally:
    loaded = [name for name in ("torch", "monai", "safetensors") if name in sys.modules]
    assert not loaded, f"loaded: {loaded}"
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory, traces_once):
    """A run, its exports, and a scan."""
    root = tmp_path_factory.mktemp("models")
    sizes = {"shape_voxel": [16, 16, 16], "batch_size": 2}
    spec = small_spec(
        labels={0: "background", 7: "left", 9: "right"},
        prepare={"spacing_mm": [1.5, 1.5, 1.5]},
        window={**sizes, "mirror_axes": [0, 2], "swap_pairs": [["left", "right"]]},
    )
    (root / "run").mkdir()
    save_model(root / "run", build_network(spec.network, num_channels=1, num_classes=3, seed=1), spec)
    for to in ("onnx", "openvino"):
        request = ExportRequest(run=root / "run", out=root / to, to=to, cases=0)
        export_run(request, device=CPU, num_threads=1, warn=lambda text: None)
    voxels = np.random.default_rng(0).standard_normal((40, 38, 28)).astype(np.float32)
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), root / "scan.nii.gz")
    return root


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_predict_imports_no_torch_for_an_export_and_writes_the_same(folders, to, tmp_path):
    environment = {**os.environ, "PYTHONPATH": python_path()}
    arguments = ["predict", folders / to, folders / "scan.nii.gz", "-o", tmp_path / "host", "--probabilities"]
    ended = subprocess.run(
        [sys.executable, "-c", _COMMAND, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    predict_files(
        folders / to, [folders / "scan.nii.gz"], tmp_path / "torch", device=CPU, num_threads=1, probabilities=True
    )
    names = [path.relative_to(tmp_path / "torch") for path in sorted((tmp_path / "torch").rglob("*.nii.gz"))]
    assert [str(name) for name in names] == ["probabilities/scan.nii.gz", "scan.nii.gz"]
    for name in names:
        found, wanted = (nib.load(tmp_path / side / name) for side in ("host", "torch"))
        difference = np.abs(found.get_fdata() - wanted.get_fdata())
        # Logits may differ in their last digit: a byte of probability, and no class here.
        assert difference.max() <= (1.5 / 255 if name.parent.name else 0.0), name
    assert len(np.unique(wanted.dataobj)) == 3


def test_torch_is_needed_for_a_run_for_several_models_and_on_a_gpu(folders):
    run, onnx, openvino = (folders / name for name in ("run", "onnx", "openvino"))
    assert runs_without_torch([onnx], "auto")
    assert runs_without_torch([openvino], "cpu")
    assert not runs_without_torch([openvino], "cuda")
    assert not runs_without_torch([run], "cpu")
    assert not runs_without_torch([onnx, openvino], "cpu")


class Predicted:
    """Logits that depend on the place in the window, of tensors or of arrays."""

    def __init__(self, num_outputs: int) -> None:
        generator = np.random.default_rng(3)
        self.factors = generator.standard_normal((num_outputs, 2)).astype(np.float32)
        self.places = generator.standard_normal((num_outputs, 8, 6, 4)).astype(np.float32)

    def __call__(self, windows):
        is_tensor = isinstance(windows, torch.Tensor)
        found = np.einsum("kc,bcxyz->bkxyz", self.factors, np.asarray(windows), dtype=np.float32) * 3 + self.places
        return torch.from_numpy(found) if is_tensor else found


@pytest.mark.parametrize("regions", [(), (2, 1, 3)])
@pytest.mark.parametrize("mirror_axes", [(), (0, 2)])
@pytest.mark.parametrize("shape", [(21, 14, 9), (5, 6, 3), (8, 6, 4)])
def test_arrays_and_tensors_give_the_same_classes_and_probabilities(shape, mirror_axes, regions, tmp_path, monkeypatch):
    # So that this small volume is cut into tiles along two axes.
    monkeypatch.setattr("voxelocity.infer.tiling._SMALL_VOXELS", 0)
    monkeypatch.setattr("voxelocity.infer.tiling._LARGE_BYTES", 0)
    spec = small_spec(
        channels=["T1", "T2"],
        labels={0: "background", 1: "a", 2: "b", 3: "c"},
        window={"shape_voxel": [8, 6, 4]},
        region_order=regions,
    )
    config = WindowConfig(shape_voxel=(8, 6, 4), overlap=0.5, batch_size=3, mirror_axes=mirror_axes)
    num_outputs = len(regions) or 4
    swapped = (0, 2, 1, 3)[:num_outputs] if not regions else ()
    volume = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
    volume[:, : shape[0] // 2] = 1.0
    results = []
    for device, image in ((HOST, volume), (CPU, torch.from_numpy(volume))):
        classes = ClassMap(shape, region_order=regions)
        sink = Probabilities(shape, (), spec, folder=tmp_path, labels=classes)
        (stitched,) = stitch_volumes(
            Predicted(num_outputs),
            [(image, sink)],
            config,
            device=device,
            num_outputs=num_outputs,
            swapped_classes=swapped,
        )
        stitched.check()
        results.append((np.asarray(classes.result()), np.array(sink._kept)))
    (found, bytes_found), (wanted, bytes_wanted) = results
    assert isinstance(classes.result(), torch.Tensor)
    # Mirrored windows of a constant image give classes that are swapped the same logits, up to their last digit.
    unequal = np.nonzero(found != wanted)
    assert len(unequal[0]) <= (2 if swapped else 0)
    assert len(np.unique(found)) > 1
    assert np.abs(bytes_found.astype(int) - bytes_wanted).max() <= 1
    if not regions and not mirror_axes:
        reference = reference_probabilities(
            Predicted(num_outputs), torch.from_numpy(volume), shape_voxel=(8, 6, 4), overlap=0.5
        )
        np.testing.assert_allclose(bytes_found / 255, reference, atol=0.51 / 255)


def test_a_nan_is_found_in_arrays_too():
    def forward(windows):
        logits = np.zeros((len(windows), 2, 4, 4, 4), np.float32)
        logits[0, 1, 2, 2, 2] = np.nan
        return logits

    config = WindowConfig(shape_voxel=(4, 4, 4))
    (stitched,) = stitch_volumes(
        forward, [(np.zeros((1, 4, 4, 4), np.float32), ClassMap((4, 4, 4)))], config, device=HOST
    )
    with pytest.raises(ScanError, match="NaN or infinity"):
        stitched.check()
